"""What is measured on a model: accuracy, spread over clients, drift, flatness."""
