// Our operators against LibTorch's, forward and backward, at the sizes of a GPT-2 124M training step (4 x 256 tokens,
// fp32).
//
// Usage: colossal_ops_bench [threads] [rounds]. Prints the best time of each; the two are run alternately, so that both
//        see the same machine.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "colossal/memory/host_memory.h"
#include "colossal/nn/linear.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/ops/attention/paged.h"
#include "colossal/ops/cpu.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/ops/linear_token_scores.h"
#include "colossal/ops/norm.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/random.h"
#include "colossal/ops/reduce.h"
#include "colossal/ops/rotary.h"
#include "colossal/ops/updates/update.h"

namespace ops = colossal::ops;

namespace {

using Work = std::function<void()>;
using Tensors = std::vector<at::Tensor>;
using Run = std::function<at::Tensor(const Tensors&)>;

constexpr int64_t kBatch = 4, kLength = 256, kTokens = kBatch * kLength, kHidden = 768, kHeads = 12, kWords = 50257;

int rounds = 5;

double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void row(const char* what, const Work& theirs, const Work& ours, double flops = 0) {
  theirs(), ours();
  double best_theirs = 1e30, best_ours = 1e30;
  for (int round = 0; round < rounds; ++round) {
    best_theirs = std::min(best_theirs, seconds_of(theirs));
    best_ours = std::min(best_ours, seconds_of(ours));
  }
  std::printf("%-44s %10.2f %10.2f %8.2f", what, best_theirs * 1e3, best_ours * 1e3, best_theirs / best_ours);
  if (flops > 0) std::printf(" %9.1f %9.1f", flops / best_theirs * 1e-9, flops / best_ours * 1e-9);
  std::printf("\n");
  std::fflush(stdout);
}

Work training(const Run& run, Tensors leaves) {
  for (auto& leaf : leaves)
    if (leaf.is_floating_point()) leaf = leaf.detach().requires_grad_(true);
  return [run, leaves] {
    const auto y = run(leaves);
    static thread_local at::Tensor seed;
    if (!seed.defined() || seed.sizes() != y.sizes()) seed = at::ones_like(y).contiguous();
    torch::autograd::backward({y}, {seed});
    for (const auto& leaf : leaves) leaf.mutable_grad() = at::Tensor();
  };
}

void compare(const char* what, const Run& theirs, const Run& ours, const Tensors& inputs, double flops = 0) {
  row(what, training(theirs, inputs), training(ours, inputs), flops);
}

void matmul_rows() {
  struct Shape {
    const char* name;
    int64_t in, out;
  };
  for (const auto& [name, in, out] :
       {Shape{"linear 768 -> 2304", kHidden, 3 * kHidden}, Shape{"linear 768 -> 768", kHidden, kHidden},
        Shape{"linear 768 -> 3072", kHidden, 4 * kHidden}, Shape{"linear 3072 -> 768", 4 * kHidden, kHidden}})
    compare(
        name, [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); },
        [](const Tensors& t) { return colossal::nn::linear(t[0], t[1], t[2]); },
        {at::randn({kBatch, kLength, in}), at::randn({out, in}), at::randn({out})},
        6.0 * kTokens * static_cast<double>(in * out));
}

void row_rows() {
  const auto x = at::randn({kBatch, kLength, kHidden}), wide = at::randn({kBatch, kLength, 4 * kHidden});
  const auto weight = at::randn({kHidden}), bias = at::randn({kHidden});
  compare(
      "layer norm", [](const Tensors& t) { return at::layer_norm(t[0], {kHidden}, t[1], t[2]); },
      [](const Tensors& t) { return ops::layer_norm(t[0], t[1], t[2], 1e-5); }, {x, weight, bias});
  compare(
      "RMS norm", [](const Tensors& t) { return at::rms_norm(t[0], {kHidden}, t[1], 1e-5); },
      [](const Tensors& t) { return ops::rms_norm(t[0], t[1], 1e-5); }, {x, weight});
  compare(
      "gelu (tanh), 3072 columns", [](const Tensors& t) { return at::gelu(t[0], "tanh"); },
      [](const Tensors& t) { return ops::gelu(t[0]); }, {wide});
  compare(
      "swiglu, 2 x 1536 columns",
      [](const Tensors& t) {
        const auto halves = t[0].chunk(2, -1);
        return at::silu(halves[0]) * halves[1];
      },
      [](const Tensors& t) { return ops::swiglu(t[0]); }, {wide});
  const ops::RotaryTable table(64, 10000);
  const auto positions = at::arange(kLength, at::kLong).expand({kBatch, kLength}).contiguous();
  compare(
      "rotary of q", [&](const Tensors& t) { return ops::rotary_reference(t[0], positions, table); },
      [&](const Tensors& t) { return ops::rotary(t[0], positions, table); }, {x.view({kBatch, kLength, kHeads, 64})});
  const auto generator = at::detail::createCPUGenerator(1);
  compare(
      "dropout", [](const Tensors& t) { return at::dropout(t[0], 0.1, true); },
      [](const Tensors& t) { return ops::dropout(t[0], 0.1, 1, 0, 0, kHidden); }, {x});
}

void attention_rows() {
  for (const int64_t length : {kLength, int64_t{1024}}) {
    const int64_t batch = kTokens / length;
    const auto heads = [&] { return at::randn({batch, length, kHeads, 64}).transpose(1, 2); };
    const std::string name = "causal attention, length " + std::to_string(length);
    compare(
        name.c_str(), [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true); },
        [](const Tensors& t) { return ops::attention(t[0], t[1], t[2], {}); }, {heads(), heads(), heads()},
        // half of 14: two products forward, five backward
        7.0 * static_cast<double>(kTokens * length) * kHidden);
  }
}

// Speedup from skipped scores: the time of each row, compared with the full causal triangle, for 4096 tokens and 12
// heads of 64. LibTorch's counterpart is its fused attention with a boolean mask.
void skipping_rows() {
  constexpr int64_t kLong = 4096, kWindow = 512, kDocument = 512;
  const auto heads = [&] { return at::randn({1, kLong, kHeads, 64}).transpose(1, 2); };
  const auto position = at::arange(kLong, at::kLong), distance = position.unsqueeze(0) - position.unsqueeze(1);
  const at::Tensor documents = position.div(kDocument, "floor").unsqueeze(0);
  const at::Tensor causal = distance.le(0), window = causal.logical_and(distance.gt(-kWindow)),
                   own = causal.logical_and(documents.eq(documents.transpose(0, 1)));
  const auto against = [&](const char* name, const at::Tensor& seen, const ops::AttentionMask& mask) {
    compare(
        name, [&](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], seen); },
        [&](const Tensors& t) { return ops::attention(t[0], t[1], t[2], mask); }, {heads(), heads(), heads()},
        14.0 * seen.sum().item<double>() * kHidden);
  };
  against("causal, length 4096", causal, {});
  against("window of 512, length 4096", window, {.window = kWindow});
  against("documents of 512, length 4096", own, {.documents = documents});
  const at::Tensor slopes = ops::alibi_slopes(kHeads);
  against("ALiBi, length 4096 (peer: without)", causal, {.alibi = slopes});
  against("soft cap, length 4096 (peer: without)", causal, {.soft_cap = 50});
}

// One query that continues a long sequence, with keys and values in pages. LibTorch's counterpart has them in one
// tensor.
void paged_rows() {
  constexpr int64_t kPage = 64, kSize = 64;
  for (const int64_t kv_heads : {1, 12})
    for (const int64_t length : {1024, 32768}) {
      const at::Tensor q = at::randn({1, kHeads, kSize}), k = at::randn({length, kv_heads, kSize}),
                       v = at::randn({length, kv_heads, kSize});
      ops::Pages pages = ops::make_pages(length / kPage, kPage, kv_heads, kSize, k.options());
      ops::PagedSequence sequence;
      for (int32_t i = 0; i < length / kPage; ++i) sequence.pages.push_back(i);
      ops::write_pages(pages, {sequence}, k, v, {length});
      sequence.held = length - 1;
      const auto as_rows = [&](const at::Tensor& x) { return x.transpose(0, 1).contiguous().unsqueeze(0); };
      const auto expanded = [&](const at::Tensor& x) { return as_rows(x).expand({1, kHeads, length, kSize}); };
      const at::Tensor keys = kv_heads == kHeads ? as_rows(k) : expanded(k),
                       values = kv_heads == kHeads ? as_rows(v) : expanded(v), query = as_rows(q);
      const std::string name = "a query, " + std::to_string(length) + " keys in pages, " + std::to_string(kv_heads) +
                               " of " + std::to_string(kHeads) + " heads";
      row(
          name.c_str(), [&] { at::scaled_dot_product_attention(query, keys, values); },
          [&] { ops::paged_attention(q, pages, {sequence}, {1}, {}); }, 4.0 * kHeads * kSize * length);
    }
}

void loss_row() {
  const auto labels = at::randint(kWords, {kTokens}, at::kLong);
  compare(
      "projection and cross entropy, 50257 words",
      [&](const Tensors& t) { return at::cross_entropy_loss(at::linear(t[0], t[1]), labels); },
      [&](const Tensors& t) { return ops::linear_cross_entropy(t[0], t[1], labels) / kTokens; },
      {at::randn({kTokens, kHidden}), at::randn({kWords, kHidden}) * 0.02}, 6.0 * kTokens * kHidden * kWords);
  compare(
      "log-probabilities of labels, 50257 words",
      [&](const Tensors& t) { return ops::token_scores(at::linear(t[0], t[1]), labels).log_probabilities.mean(); },
      [&](const Tensors& t) { return ops::linear_token_scores(t[0], t[1], {}, labels).log_probabilities.mean(); },
      {at::randn({kTokens, kHidden}), at::randn({kWords, kHidden}) * 0.02}, 8.0 * kTokens * kHidden * kWords);
}

void flat_rows() {
  constexpr int64_t kParameters = 40'000'000;
  const auto buffer = [] { return at::randn({kParameters}) * 0.02; };
  auto param = buffer(), grad = buffer(), m = at::zeros({kParameters}), v = at::zeros({kParameters});
  const auto step = at::ones({});
  row(
      "AdamW, 40 M parameters",
      [&] { at::_fused_adamw_({param}, {grad}, {m}, {v}, {}, {step}, 1e-4, 0.9, 0.999, 0.01, 1e-8, false, false); },
      [&] { ops::adam_({param, grad}, m, v, {.learning_rate = 1e-4, .weight_decay = 0.01}); });
  row("sum of squares, 40 M", [&] { grad.square().sum().item<float>(); }, [&] { ops::sum_of_squares(grad); });
  row("zero, 40 M", [&] { grad.zero_(); }, [&] { ops::zero_(grad); });
  row(
      "normal values, 40 M", [&] { param.normal_(); },
      [&] { ops::fill_normal(param, {kParameters}, {0}, {0}, {kParameters}, 1, 1); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) at::set_num_threads(std::atoi(argv[1]));
  if (argc > 2) rounds = std::atoi(argv[2]);
  if (argc > 3) colossal::memory::keep_host_memory();
  const auto choice = ops::matmul_choice();
  const auto library = [](ops::MatmulLibrary l) { return l == ops::MatmulLibrary::Mkl ? "MKL" : "oneDNN"; };
  std::printf("%d threads, %s; products: nt %s, nn %s, tn %s\n", at::get_num_threads(),
              ops::name(ops::instruction_set()).data(), library(choice.nt), library(choice.nn), library(choice.tn));
  std::printf("%-44s %10s %10s %8s %9s %9s\n", "forward + backward, best", "torch ms", "ours ms", "ratio", "GF/s",
              "GF/s");
  matmul_rows();
  row_rows();
  attention_rows();
  skipping_rows();
  paged_rows();
  loss_row();
  flat_rows();
}
