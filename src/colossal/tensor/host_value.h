// Numbers of a tensor on the host: the one place where a program waits for a device to read what it computed.
//
//   at::Tensor sum = loss_of_the_first_micro_batch;       // stays on the device
//   for (...) sum = sum + loss_of_the_next;               // so does this
//   const double mean = tensor::host_value(sum) / count;  // one wait a step
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace colossal::tensor {

/// The numbers of `x`, in its order, as doubles. Cost: waits until the device has computed them. Of a tensor on "meta",
/// which has a shape and no numbers, zeros: a run without peers (comm::make_idle_world) goes on with them, so nothing
/// may depend on a value that communicates or computes something else then. Profilers see it as an operator
/// "colossal::host_values".
std::vector<double> host_values(const at::Tensor& x);

/// The number of a tensor that has one.
double host_value(const at::Tensor& x);

}  // namespace colossal::tensor
