// The product whose operands are gathered before it is computed and whose result is scattered afterwards: of 3D, and of
// Megatron's sequence form.
#pragma once
#include <memory>

#include "colossal/comm/group.h"
#include "colossal/nn/product.h"

namespace colossal::parallel {

/// x is cut along `input`: its rows are gathered there, in rank order. W is kept in pieces along `weight`, gathered
/// too. Each rank multiplies what it gathered; the terms of y are summed along `output`, where each rank keeps its
/// rows. Backward is the same the other way round. A group of one rank sends nothing and copies nothing.
///
/// Communication: with sizes S_x, S_W and S_y of a rank's gathered x, gathered W and unscattered y, and n ranks along
///                the group of each: forward (n-1)/n (S_x + S_W + S_y), a call each. Backward gathers dy, scatters dx
///                and dW, the same elements; and it gathers x and W once more, unless `keep_gathered`.
/// Memory:        backward keeps the rank's blocks of x and W, or with `keep_gathered` the gathered ones.
std::shared_ptr<const nn::Product> gathered_product(comm::Group& input, comm::Group& weight, comm::Group& output,
                                                    bool keep_gathered);

}  // namespace colossal::parallel
