#pragma once
#include <ATen/core/Tensor.h>
#include <vector>
namespace colossal::ops {
using GroupEnds = std::vector<int64_t>;
at::Tensor grouped_nt(const at::Tensor& x, const at::Tensor& w, const GroupEnds& ends, const at::Tensor& bias = {});
at::Tensor grouped_nn(const at::Tensor& dy, const at::Tensor& w, const GroupEnds& ends);
at::Tensor grouped_tn(const at::Tensor& dy, const at::Tensor& x, const GroupEnds& ends, at::Tensor sum = {});
at::Tensor grouped_sums(const at::Tensor& dy, const GroupEnds& ends);
}
