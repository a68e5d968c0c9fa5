"""What AWS Lambda adds to the core: the HTTP face (`http`) and the four handlers (`runtime`)."""
