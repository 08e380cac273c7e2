"""Files to begin with: `fedflat new` writes copies of them under another name."""
