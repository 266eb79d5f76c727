"""Attribution of operators and activities to the layers of the model."""
