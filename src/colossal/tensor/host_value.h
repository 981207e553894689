// Reads values of a tensor on the host: the one place where a program waits for a device to read its results.
//
//   at::Tensor sum = loss_of_the_first_micro_batch;       // stays on the device
//   for (...) sum = sum + loss_of_the_next;               // so does this
//   const double mean = tensor::host_value(sum) / count;  // one wait a step
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace colossal::tensor {

/// Returns the values of `x` as doubles, in the order of its elements. Profilers see it as an operator
/// "colossal::host_values".
/// Cost: waits until the device has computed the values.
///
/// A tensor on "meta" has a shape but no values, so the result is zeros. A run without peers
/// (comm::make_simulated_world) continues with these zeros. So no code may choose its communication or its computation
/// by a value that it reads here.
std::vector<double> host_values(const at::Tensor& x);

/// Returns the value of a tensor that has one element. Errors ("tensor"): any other number of elements.
double host_value(const at::Tensor& x);

}  // namespace colossal::tensor
