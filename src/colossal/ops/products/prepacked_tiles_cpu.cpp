#define COLOSSAL_PREPACKED prepacked_software_tiles
#define COLOSSAL_PREPACKED_NAME "software tiles"
#define COLOSSAL_PREPACKED_BY_TILES
#include "colossal/ops/products/prepacked_kernel.h"
