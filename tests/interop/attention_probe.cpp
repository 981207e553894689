// Runs our attention for tests/interop/attention_interop.py.
//
// Usage: colossal_attention_probe FOLDER batch heads kv_heads length head_dim causal window alibi soft_cap scale
//   reads FOLDER/{q,k,v,dout}, rows of doubles [batch, heads, length, head_dim], k and v with kv_heads, and writes
//   FOLDER/{out,dq,dk,dv} of the same shapes.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "colossal/base/error.h"
#include "colossal/ops/attention/attention.h"

namespace {

at::Tensor read(const std::string& path, at::IntArrayRef shape) {
  at::Tensor x = at::empty(shape, at::kDouble);
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(x.data_ptr()), static_cast<std::streamsize>(x.nbytes()));
  colossal::require(file.gcount() == static_cast<std::streamsize>(x.nbytes()), "probe", path, " must hold ", shape);
  return x;
}

void write(const std::string& path, const at::Tensor& x) {
  const at::Tensor dense = x.detach().contiguous();
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(dense.data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
}

}  // namespace

int main(int argc, char** argv) try {
  colossal::require(argc == 12, "probe", "eleven arguments are expected: got ", argc - 1);
  const std::string folder = std::string(argv[1]) + "/";
  const auto number = [&](int i) { return std::atoll(argv[i]); };
  const int64_t batch = number(2), heads = number(3), kv_heads = number(4), length = number(5), head_dim = number(6);
  colossal::ops::AttentionMask mask{
      .causal = number(7) != 0, .scale = std::atof(argv[11]), .window = number(8), .soft_cap = std::atof(argv[10])};
  if (number(9) != 0) mask.alibi = colossal::ops::alibi_slopes(heads);
  const at::Tensor q = read(folder + "q", {batch, heads, length, head_dim}).requires_grad_();
  const at::Tensor k = read(folder + "k", {batch, kv_heads, length, head_dim}).requires_grad_();
  const at::Tensor v = read(folder + "v", {batch, kv_heads, length, head_dim}).requires_grad_();
  const at::Tensor out = colossal::ops::attention(q, k, v, mask);
  torch::autograd::backward({out}, {read(folder + "dout", out.sizes())});
  write(folder + "out", out);
  write(folder + "dq", q.grad()), write(folder + "dk", k.grad()), write(folder + "dv", v.grad());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
