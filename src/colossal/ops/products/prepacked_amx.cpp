#define COLOSSAL_PREPACKED prepacked_amx
#define COLOSSAL_PREPACKED_NAME "amx"
#define COLOSSAL_PREPACKED_BY_TILES
#include "colossal/ops/products/prepacked_kernel.h"

static_assert(colossal::ops::kTilesAreInstructions, "this unit needs -mamx-tile -mamx-bf16 -mamx-int8");
