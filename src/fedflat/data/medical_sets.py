"""The two-dimensional sets of MedMNIST (Yang et al., 2023; version 3), 28 x 28 pixels: one npz file for each."""

from __future__ import annotations

from ..core.task import FORMS, Kind
from .dataset import FileDataset
from .preparation import Preparation
from .readers.array_files import MedicalNpz
from .readers.layouts import Shape

ORGANS = ("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left",
          "lung-right", "pancreas", "spleen")  # fmt: skip
CHEST = ("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax",
         "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia")  # fmt: skip


def _medical(
    name: str, what: str, train: int, test: int, classes: tuple[str, ...], channels: int = 1,
    task: Kind = "classification",
) -> FileDataset:  # fmt: skip
    """Describe one set. Pixels are normalised by 0.5 and 0.5, as in MedMNIST's own experiments."""
    is_multi_label, kind = task == "multi-label", FORMS[task].outputs
    return FileDataset(
        f"MedMNIST's {what}, {len(classes)} {kind}, {train:,} pictures for training and {test:,} for test.",
        classes=len(classes),
        sizes={"train": train, "test": test},
        layouts=(MedicalNpz(name, len(classes) if is_multi_label else 1),),
        picture=Shape(channels, size=28),
        preparation=Preparation(mean=(0.5,) * channels, std=(0.5,) * channels),
        folders=("medmnist",),
        class_names=() if is_multi_label else classes,
        task=task,
    )


MEDICAL_SETS = {
    "bloodmnist": _medical(
        "bloodmnist", "blood cells under a microscope", 11_959, 3_421,
        ("basophil", "eosinophil", "erythroblast", "immature granulocyte", "lymphocyte", "monocyte", "neutrophil",
         "platelet"), channels=3,
    ),
    "breastmnist": _medical("breastmnist", "ultrasound of the breast", 546, 156, ("malignant", "normal or benign")),
    "chestmnist": _medical("chestmnist", "X-rays of the chest", 78_468, 22_433, CHEST, task="multi-label"),
    "dermamnist": _medical(
        "dermamnist", "lesions of the skin", 7_007, 2_005,
        ("actinic keratosis", "basal cell carcinoma", "benign keratosis", "dermatofibroma", "melanoma", "nevus",
         "vascular lesion"), channels=3,
    ),
    "octmnist": _medical(
        "octmnist", "tomography of the retina", 97_477, 1_000,
        ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    ),
    "organamnist": _medical("organamnist", "organs in axial tomography", 34_561, 17_778, ORGANS),
    "organcmnist": _medical("organcmnist", "organs in coronal tomography", 12_975, 8_216, ORGANS),
    "organsmnist": _medical("organsmnist", "organs in sagittal tomography", 13_932, 8_827, ORGANS),
    "pathmnist": _medical(
        "pathmnist", "tissue of the colon", 89_996, 7_180,
        ("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal mucosa",
         "cancer-associated stroma", "adenocarcinoma"), channels=3,
    ),
    "pneumoniamnist": _medical("pneumoniamnist", "X-rays of children", 4_708, 624, ("normal", "pneumonia")),
    "retinamnist": _medical(
        "retinamnist", "photographs of the retina, five grades", 1_080, 400, ("0", "1", "2", "3", "4"), channels=3,
    ),
    "tissuemnist": _medical(
        "tissuemnist", "cells of the kidney", 165_466, 47_280,
        ("collecting duct", "distal convoluted tubule", "glomerular endothelial", "interstitial endothelial",
         "leukocytes", "podocytes", "proximal tubule", "thick ascending limb"),
    ),
}  # fmt: skip
