// A product whose operands are gathered before it is computed and whose result is scattered afterwards. 3D and
// Megatron's sequence form use it.
#pragma once
#include <memory>

#include "colossal/comm/group.h"
#include "colossal/nn/product.h"

namespace colossal::parallel {

/// Returns a product. The rows of x are split along `input` and gathered there, in rank order. W is stored in shards
/// along `weight` and gathered, too. Each rank multiplies its gathered operands; the terms of y are summed along
/// `output`, where each rank keeps its rows. Backward does the same in the opposite direction. A group of one rank
/// sends and copies nothing.
///
/// Communication: with sizes S_x, S_W and S_y of a rank's gathered x, gathered W and unscattered y, and n ranks along
///                the group of each: forward (n-1)/n (S_x + S_W + S_y), with one call each. Backward gathers dy and
///                scatters dx and dW, the same number of elements. Unless `keep_gathered`, it also gathers x and W
///                again.
/// Memory:        backward keeps the rank's blocks of x and W, or with `keep_gathered` the gathered ones.
std::shared_ptr<const nn::Product> gathered_product(comm::Group& input, comm::Group& weight, comm::Group& output,
                                                    bool keep_gathered);

}  // namespace colossal::parallel
