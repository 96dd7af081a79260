// SPDX-License-Identifier: MIT OR Apache-2.0
module jitsym

go 1.19
