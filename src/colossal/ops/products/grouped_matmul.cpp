#include "colossal/ops/products/grouped_matmul.h"
#include <ATen/ATen.h>
#include "colossal/ops/products/matmul.h"
namespace colossal::ops {
at::Tensor grouped_nt(const at::Tensor& x, const at::Tensor& w, const GroupEnds& ends, const at::Tensor& bias) {
  std::vector<at::Tensor> all{at::empty({0, w.size(1)}, x.options())};
  int64_t from = 0;
  for (size_t e = 0; e < ends.size(); from = ends[e++])
    if (ends[e] > from) all.push_back(matmul_nt(x.narrow(0, from, ends[e] - from), w[e], bias.defined() ? bias[e] : at::Tensor()));
  return at::cat(all);
}
at::Tensor grouped_nn(const at::Tensor& dy, const at::Tensor& w, const GroupEnds& ends) {
  std::vector<at::Tensor> all{at::empty({0, w.size(2)}, dy.options())};
  int64_t from = 0;
  for (size_t e = 0; e < ends.size(); from = ends[e++])
    if (ends[e] > from) all.push_back(matmul_nn(dy.narrow(0, from, ends[e] - from), w[e]));
  return at::cat(all);
}
at::Tensor grouped_tn(const at::Tensor& dy, const at::Tensor& x, const GroupEnds& ends, at::Tensor sum) {
  at::Tensor out = sum.defined() ? sum : at::zeros({(int64_t)ends.size(), dy.size(1), x.size(1)}, dy.options());
  int64_t from = 0;
  for (size_t e = 0; e < ends.size(); from = ends[e++])
    if (ends[e] > from) out[e].add_(matmul_tn(dy.narrow(0, from, ends[e] - from), x.narrow(0, from, ends[e] - from)));
  return out;
}
at::Tensor grouped_sums(const at::Tensor& dy, const GroupEnds& ends) {
  at::Tensor out = at::zeros({(int64_t)ends.size(), dy.size(1)}, dy.options());
  int64_t from = 0;
  for (size_t e = 0; e < ends.size(); from = ends[e++])
    if (ends[e] > from) out[e].copy_(dy.narrow(0, from, ends[e] - from).sum(0));
  return out;
}
}
