module jitsym

go 1.19
