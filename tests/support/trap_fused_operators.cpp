// Fused operators on the trap device that LibTorch has only for GPUs. Each has the checks of LibTorch's own operator
// and computes its result with plain operators. A call that is right here has the right operands and results on a GPU.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/trap_backend.h"

namespace colossal::test {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

// --- products ---

void check_wide(const Tensor& a, const Tensor& b, at::ScalarType dtype, const Tensor& out) {
  const auto type = a.scalar_type();
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "matrices do not fit: ", a.sizes(), " and ",
              b.sizes());
  TORCH_CHECK(type == b.scalar_type(), "input dtypes must be the same");
  TORCH_CHECK(type == dtype || (dtype == at::kFloat && (type == at::kHalf || type == at::kBFloat16)),
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
  TORCH_CHECK(out.scalar_type() == dtype, "out_dtype must be the same as the dtype of the provided out tensor");
  TORCH_CHECK(out.dim() == 2 && out.size(0) == a.size(0) && out.size(1) == b.size(1), "the original would resize ",
              out.sizes());
}

/// A product with sums and results in `dtype`.
Tensor& wide_mm(const Tensor& a, const Tensor& b, at::ScalarType dtype, Tensor& out) {
  check_wide(a, b, dtype, out);
  return out.copy_(at::mm(a.to(dtype), b.to(dtype)));
}

Tensor& wide_addmm(const Tensor& added, const Tensor& a, const Tensor& b, at::ScalarType dtype, const at::Scalar& beta,
                   const at::Scalar& alpha, Tensor& out) {
  check_wide(a, b, dtype, out);
  TORCH_CHECK(added.scalar_type() == dtype || added.scalar_type() == a.scalar_type(),
              "self dtype must match either out_dtype or mat1 dtype");
  return out.copy_(at::addmm(added.to(dtype), a.to(dtype), b.to(dtype), beta, alpha));
}

void check_codes(const char* name, const Tensor& codes, bool by_rows, const Tensor& scale) {
  const auto type = codes.scalar_type();
  TORCH_CHECK(codes.dim() == 2 && (type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2), name,
              " must be a matrix of Float8");
  TORCH_CHECK((by_rows ? codes : codes.t()).is_contiguous(),
              "Only multiplication of row-major and column-major matrices is supported by cuBLASLt: ", name);
  TORCH_CHECK(reinterpret_cast<uintptr_t>(codes.const_data_ptr()) % 16 == 0, name, " must begin at 16 bytes");
  TORCH_CHECK(scale.numel() == 1 && scale.scalar_type() == at::kFloat && scale.device() == codes.device(),
              "the scale of ", name, " must be one fp32 number of the device");
}

Tensor scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b, const Optional& bias,
                 const Optional& scale_result, std::optional<at::ScalarType> dtype, bool fast) {
  TORCH_CHECK(!scale_result && !fast, "results are not scaled here, nor sums made with fewer bits");
  check_codes("mat1", a, true, scale_a);
  check_codes("mat2", b, false, scale_b);
  TORCH_CHECK(a.scalar_type() != at::kFloat8_e5m2 || b.scalar_type() != at::kFloat8_e5m2,
              "Multiplication of two Float8_e5m2 matrices is not supported");
  TORCH_CHECK(a.size(1) == b.size(0) && a.size(1) % 16 == 0 && b.size(1) % 16 == 0,
              "the sides of the second matrix must be divisible by 16: ", a.sizes(), " and ", b.sizes());
  const at::ScalarType type = dtype.value_or(a.scalar_type());
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, "results are fp32, bf16 or fp16 here");
  TORCH_CHECK(!bias || (type != at::kFloat && bias->scalar_type() == type && bias->numel() == b.size(1)),
              "a bias must be of the dtype of the result, and that not fp32");
  const Tensor product = at::mm(a.to(at::kFloat), b.to(at::kFloat)) * (scale_a * scale_b);
  return (bias ? product + bias->to(at::kFloat) : product).to(type);
}

std::vector<int64_t> numbers_of(const Tensor& integers);

void check_grouped(const char* name, const Tensor& x) {
  const int64_t rows = x.stride(-2), columns = x.stride(-1);
  TORCH_CHECK(x.scalar_type() == at::kBFloat16, name, " must be bf16");
  TORCH_CHECK((columns == 1 && rows % 8 == 0) || (rows == 1 && columns % 8 == 0), name,
              " must be row-major or column-major with strides of whole 16 bytes: got ", x.strides());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0, name, " must begin at 16 bytes");
}

// Rows of `a` with stacked matrices, or, if both are matrices, groups of columns of `a` with rows of `b`.
Tensor grouped_mm(const Tensor& a, const Tensor& b, const Optional& ends, const Optional& bias,
                  std::optional<at::ScalarType> dtype) {
  check_grouped("self", a);
  check_grouped("mat2", b);
  TORCH_CHECK(a.dim() == 2 && (b.dim() == 2 || b.dim() == 3) && a.size(1) == b.size(-2),
              "sizes do not fit: ", a.sizes(), " and ", b.sizes());
  TORCH_CHECK(!bias, "Bias not supported yet");
  TORCH_CHECK(!dtype || *dtype == at::kBFloat16, "Only bf16 high precision output types are supported");
  TORCH_CHECK(ends && ends->scalar_type() == at::kInt && ends->dim() == 1 && ends->device() == a.device(),
              "Offsets have to be int32 of the device");
  TORCH_CHECK(b.dim() == 2 || b.size(0) == ends->size(0), "matrix batch sizes have to match");
  const std::vector<int64_t> borders = numbers_of(*ends);
  const Tensor out = b.dim() == 3 ? at::empty({a.size(0), b.size(2)}, a.options())
                                  : at::empty({ends->size(0), a.size(0), b.size(1)}, a.options());
  int64_t from = 0;
  for (int64_t group = 0; group < ends->size(0); ++group) {
    const int64_t count = borders[static_cast<size_t>(group)] - from;
    if (b.dim() == 3)
      out.narrow(0, from, count).copy_(at::mm(a.narrow(0, from, count).to(at::kFloat), b[group].to(at::kFloat)));
    else
      out[group].copy_(at::mm(a.narrow(1, from, count).to(at::kFloat), b.narrow(0, from, count).to(at::kFloat)));
    from += count;
  }
  return out;
}

// --- flash attention over the rows of a batch, or over sequences that are concatenated ---

std::vector<int64_t> numbers_of(const Tensor& integers) {
  refuse_while_recording(integers.device(), "this plain version reads borders on the host, the operator does not");
  const Tensor host = peek(integers).to(at::kLong);
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

void check_integers(const char* name, const Tensor& x, const Tensor& beside) {
  TORCH_CHECK(x.scalar_type() == at::kInt && x.dim() == 1 && x.is_contiguous() && x.device() == beside.device(), name,
              " must be int32 of the device");
}

void check_heads(const char* name, const Tensor& x, int64_t dims) {
  TORCH_CHECK(x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16, name, " must be fp16 or bf16");
  TORCH_CHECK(x.dim() == dims && x.stride(-1) == 1, name, " must be [.., tokens, heads, size], dense in the last");
  TORCH_CHECK(x.size(-1) % 8 == 0 && x.size(-1) <= 256, "head_size must be a multiple of 8, up to 256");
}

/// The tokens of all sequences, [tokens, heads, size]. Sequence i has count[i] tokens from first[i] on.
struct Sequences {
  Tensor tokens;
  std::vector<int64_t> first, count;
};

/// Returns the sequences in the two forms of the operator. With `borders` they are ranges of tokens, and `used` may
/// limit their lengths. Without borders they are the rows of a batch.
Sequences sequences_of(const char* name, const Tensor& x, const Tensor& borders, int64_t longest,
                       const Optional& used = {}) {
  check_heads(name, x, borders.defined() ? 3 : 4);
  Sequences all{borders.defined() ? x : x.flatten(0, 1)};
  if (borders.defined()) {
    check_integers("borders", borders, x);
    const std::vector<int64_t> at = numbers_of(borders);
    TORCH_CHECK(!at.empty() && at.front() == 0 && at.back() == x.size(0), "borders must span the tokens of ", name);
    for (size_t i = 1; i < at.size(); ++i) {
      TORCH_CHECK(at[i] >= at[i - 1], "borders must not fall");
      all.first.push_back(at[i - 1]), all.count.push_back(at[i] - at[i - 1]);
    }
  } else {
    TORCH_CHECK(!used, "only sequences with borders have lengths");
    for (int64_t i = 0; i < x.size(0); ++i) all.first.push_back(i * x.size(1)), all.count.push_back(x.size(1));
  }
  if (used) {
    check_integers("lengths", *used, x);
    const std::vector<int64_t> lengths = numbers_of(*used);
    TORCH_CHECK(lengths.size() == all.count.size(), "there must be a length for each sequence");
    for (size_t i = 0; i < lengths.size(); ++i) TORCH_CHECK(lengths[i] <= all.count[i], "a length is beyond a border");
    all.count = lengths;
  }
  const int64_t found = *std::max_element(all.count.begin(), all.count.end());
  TORCH_CHECK(found == longest, "the longest sequence of ", name, " has ", found, " tokens, not ", longest);
  return all;
}

struct Reach {
  int64_t left, right;  // number of tokens; negative = no limit
};

Reach reach_of(bool causal, std::optional<int64_t> left, std::optional<int64_t> right) {
  return {left.value_or(-1), causal ? 0 : right.value_or(-1)};
}

/// Returns the mask [queries, keys] of the keys that a query may not attend to. The last query is at the last key.
Tensor hidden_of(int64_t queries, int64_t keys, const Reach& reach, const Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  const Tensor distance =
      at::arange(keys, options).unsqueeze(0) - (at::arange(queries, options) + keys - queries).unsqueeze(1);
  Tensor hidden = at::zeros_like(distance, at::kBool);
  if (reach.left >= 0) hidden = hidden.logical_or(distance < -reach.left);
  if (reach.right >= 0) hidden = hidden.logical_or(distance > reach.right);
  return hidden;
}

/// Returns sequence i as [heads, tokens, size] in fp32, with heads repeated up to the number of query heads.
Tensor run_of(const Sequences& all, size_t i, int64_t heads) {
  const Tensor x = all.tokens.narrow(0, all.first[i], all.count[i]).to(at::kFloat).transpose(0, 1);
  return x.repeat_interleave(heads / x.size(0), 0);
}

/// Converts between the layouts of LibTorch's two forms: [heads, tokens] and [rows, heads, tokens per row].
Tensor by_rows(const Tensor& log_sums, int64_t rows) {
  return log_sums.unflatten(1, {rows, -1}).transpose(0, 1).contiguous();
}
Tensor by_heads(const Tensor& log_sums) { return log_sums.transpose(0, 1).flatten(1, 2); }

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward(
    const Tensor& q, const Tensor& k, const Tensor& v, const Optional& first_q, const Optional& first_k, int64_t max_q,
    int64_t max_k, double dropout, bool causal, bool debug, std::optional<double> scale, std::optional<int64_t> left,
    std::optional<int64_t> right, const Optional& used, const Optional& slopes) {
  TORCH_CHECK(dropout == 0 && !debug && !slopes, "the plain version knows sequences, and nothing of dropout or slopes");
  TORCH_CHECK(first_q.has_value() == first_k.has_value(), "both or neither have borders");
  const Tensor none;
  const Sequences queries = sequences_of("query", q, first_q.value_or(none), max_q),
                  keys = sequences_of("key", k, first_k.value_or(none), max_k, used),
                  values = sequences_of("value", v, first_k.value_or(none), max_k, used);
  const int64_t heads = q.size(-2);
  TORCH_CHECK(heads % k.size(-2) == 0 && k.sizes() == v.sizes(), "heads must divide by key-value heads");
  TORCH_CHECK(queries.count.size() == keys.count.size(), "there must be as many sequences of queries as of keys");
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  const Tensor out = at::empty(queries.tokens.sizes(), q.options()),
               log_sums = at::empty({heads, queries.tokens.size(0)}, q.options().dtype(at::kFloat));
  for (size_t i = 0; i < queries.count.size(); ++i) {
    const Tensor own = run_of(keys, i, heads);
    const Tensor hidden = hidden_of(queries.count[i], keys.count[i], reach_of(causal, left, right), q);
    const Tensor scores = (run_of(queries, i, heads).matmul(own.transpose(1, 2)) * factor)
                              .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    log_sums.narrow(1, queries.first[i], queries.count[i]).copy_(scores.logsumexp(-1));
    const Tensor mean = scores.softmax(-1).matmul(run_of(values, i, heads));
    out.narrow(0, queries.first[i], queries.count[i]).copy_(mean.transpose(0, 1));
  }
  const Tensor seeds = at::zeros({2}, q.options().dtype(at::kLong)), unused = at::empty({0}, q.options());
  return {out.view(q.sizes()), first_q ? log_sums : by_rows(log_sums, q.size(0)), seeds, unused, unused};
}

/// The signature of the operator in LibTorch 2.13.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward_of_pages(
    const Tensor& q, const Tensor& k, const Tensor& v, const Optional& first_q, const Optional& first_k, int64_t max_q,
    int64_t max_k, double dropout, bool causal, bool debug, std::optional<double> scale, std::optional<int64_t> left,
    std::optional<int64_t> right, const Optional& used, const Optional& slopes, const Optional& blocks,
    std::optional<int64_t> splits) {
  TORCH_CHECK(!blocks && !splits, "the plain version knows nothing of pages and of splits, which 2.11 does not have");
  return flash_forward(q, k, v, first_q, first_k, max_q, max_k, dropout, causal, debug, scale, left, right, used,
                       slopes);
}

template <class Result, class... Arguments>
constexpr size_t arity(Result (*)(Arguments...)) {
  return sizeof...(Arguments);
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& sums, const Tensor& first_q,
                                                  const Tensor& first_k, int64_t max_q, int64_t max_k, double dropout,
                                                  bool causal, const Tensor& seeds, const Tensor&,
                                                  std::optional<double> scale, std::optional<int64_t> left,
                                                  std::optional<int64_t> right) {
  TORCH_CHECK(dropout == 0 && seeds.defined(), "the plain version drops nothing");
  const Sequences queries = sequences_of("query", q, first_q, max_q), keys = sequences_of("key", k, first_k, max_k),
                  values = sequences_of("value", v, first_k, max_k),
                  results = sequences_of("output", out, first_q, max_q),
                  gradients = sequences_of("gradient", dout.contiguous(), first_q, max_q);
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  const int64_t heads = q.size(-2);
  const Tensor log_sums = first_q.defined() ? sums : by_heads(sums);
  const auto empty_like = [](const Sequences& all) { return at::empty(all.tokens.sizes(), all.tokens.options()); };
  const Tensor dq = empty_like(queries), dk = empty_like(keys), dv = empty_like(values);
  const auto store = [&](const Tensor& to, int64_t first, const Tensor& per_head) {  // the sum over a group of heads
    const Tensor own = per_head.unflatten(0, {to.size(1), -1}).sum(1);
    to.narrow(0, first, own.size(1)).copy_(own.transpose(0, 1));
  };
  for (size_t i = 0; i < queries.count.size(); ++i) {
    const Tensor query = run_of(queries, i, heads), key = run_of(keys, i, heads),
                 gradient = run_of(gradients, i, heads);
    const Tensor hidden = hidden_of(query.size(1), key.size(1), reach_of(causal, left, right), q);
    const Tensor own = log_sums.narrow(1, queries.first[i], queries.count[i]).unsqueeze(2);
    const Tensor weights = (query.matmul(key.transpose(1, 2)) * factor - own).exp().masked_fill(hidden, 0);
    const Tensor inner = (gradient * run_of(results, i, heads)).sum(-1, true);
    const Tensor dscores = weights * (gradient.matmul(run_of(values, i, heads).transpose(1, 2)) - inner) * factor;
    store(dq, queries.first[i], dscores.matmul(key));
    store(dk, keys.first[i], dscores.transpose(1, 2).matmul(query));
    store(dv, keys.first[i], weights.transpose(1, 2).matmul(gradient));
  }
  return {dq.view(q.sizes()), dk.view(k.sizes()), dv.view(v.sizes())};
}

// --- norms ---

at::ScalarType statistics_of(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

void check_norm(const Tensor& x, at::IntArrayRef width, const Optional& weight) {
  TORCH_CHECK(width.size() == 1 && x.size(-1) == width[0], "only the last dimension is normed here");
  TORCH_CHECK(weight && weight->sizes() == width && weight->scalar_type() == x.scalar_type(),
              "weight must be like a row of the input");
}

std::tuple<Tensor, Tensor> rms_forward(const Tensor& x, at::IntArrayRef width, const Optional& weight,
                                       std::optional<double> epsilon) {
  check_norm(x, width, weight);
  const Tensor wide = x.to(statistics_of(x)), scale = (wide.square().mean(-1, true) + epsilon.value()).rsqrt();
  return {(wide * scale * weight->to(wide.scalar_type())).to(x.scalar_type()), scale};
}

std::tuple<Tensor, Tensor> rms_backward(const Tensor& dy, const Tensor& x, at::IntArrayRef width, const Tensor& scale,
                                        const Optional& weight, std::array<bool, 2> wanted) {
  check_norm(x, width, weight);
  TORCH_CHECK(dy.sizes() == x.sizes() && dy.scalar_type() == x.scalar_type(), "gradients must be like the input");
  const Tensor normed = x.to(scale.scalar_type()) * scale, wide = dy.to(scale.scalar_type());
  const Tensor scaled = wide * weight->to(scale.scalar_type());
  const Tensor dx = (scaled - normed * (scaled * normed).mean(-1, true)) * scale;
  return {wanted[0] ? dx.to(x.scalar_type()) : Tensor(),
          wanted[1] ? (wide * normed).reshape({-1, width[0]}).sum(0).to(weight->scalar_type()) : Tensor()};
}

// As GPUs do, it takes planes of one dtype: LibTorch's kernels read no other layout and keep statistics in that dtype.
std::tuple<Tensor, Tensor, Tensor> group_forward(const Tensor& x, const Optional& weight, const Optional& bias,
                                                 int64_t rows, int64_t channels, int64_t pixels, int64_t groups,
                                                 double epsilon) {
  for (const Optional* one : {&weight, &bias})
    TORCH_CHECK(*one && (*one)->numel() == channels && (*one)->scalar_type() == x.scalar_type(),
                "weight and bias must have an element of the input's dtype for each channel");
  TORCH_CHECK(x.is_contiguous() && x.numel() == rows * channels * pixels, "the input must be planes without gaps");
  const Tensor by_group = x.view({rows, groups, -1}), mean = by_group.mean(2, true), centred = by_group - mean;
  const Tensor scale = (centred.square().mean(2, true) + epsilon).rsqrt();
  const auto of_channels = [&](const Tensor& t) { return t.view({1, channels, 1}); };
  const Tensor y = (centred * scale).view({rows, channels, -1}) * of_channels(*weight) + of_channels(*bias);
  return {y.view(x.sizes()), mean.view({rows, groups}), scale.view({rows, groups})};
}

// --- convolutions: LibTorch calls these of a device without kernels of its own names ---

void check_convolution(const Tensor& x, const Tensor& weight, bool transposed, int64_t groups) {
  TORCH_CHECK(!transposed && groups == 1 && x.scalar_type() == weight.scalar_type(),
              "only plain convolutions with factors of one dtype are known");
}

/// Returns x [B, C, T, h, w] with what a kernel of some frames reads side by side, as pictures [B T', C frames, h, w].
Tensor frames_side_by_side(const Tensor& x, int64_t frames, int64_t stride) {
  return x.unfold(2, frames, stride).permute({0, 2, 1, 5, 3, 4}).flatten(2, 3).flatten(0, 1);
}

Tensor convolution_forward(const Tensor& x, const Tensor& weight, const Optional& bias, at::IntArrayRef stride,
                           at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output,
                           int64_t groups) {
  check_convolution(x, weight, transposed, groups);
  if (x.dim() == 5) {
    TORCH_CHECK(padding[0] == 0 && dilation[0] == 1, "only clips without frames around them are known");
    const Tensor pictures = frames_side_by_side(x, weight.size(2), stride[0]);
    return convolution_forward(pictures, weight.flatten(1, 2), bias, stride.slice(1), padding.slice(1),
                               dilation.slice(1), transposed, output, groups)
        .unflatten(0, {x.size(0), -1})
        .transpose(1, 2);
  }
  const auto size = [&](int64_t d) {
    return (x.size(2 + d) + 2 * padding[d] - dilation[d] * (weight.size(2 + d) - 1) - 1) / stride[d] + 1;
  };
  const Tensor columns = at::im2col(x, weight.sizes().slice(2), dilation, padding, stride);
  const Tensor y = weight.flatten(1).matmul(columns).view({x.size(0), weight.size(0), size(0), size(1)});
  return bias && bias->defined() ? y + bias->view({1, -1, 1, 1}) : y;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                        at::IntArrayRef stride, at::IntArrayRef padding,
                                                        at::IntArrayRef dilation, bool transposed,
                                                        at::IntArrayRef output, int64_t groups,
                                                        std::array<bool, 3> wanted) {
  check_convolution(x, weight, transposed, groups);
  if (x.dim() == 5) {
    const int64_t frames = weight.size(2);
    auto [dx, dweight, dbias] = convolution_backward(
        dy.transpose(1, 2).flatten(0, 1), frames_side_by_side(x, frames, stride[0]), weight.flatten(1, 2),
        stride.slice(1), padding.slice(1), dilation.slice(1), transposed, output, groups, wanted);
    if (wanted[1]) dweight = dweight.view(weight.sizes());
    if (!wanted[0]) return {dx, dweight, dbias};
    const Tensor parts =
        dx.unflatten(1, {x.size(1), frames}).unflatten(0, {x.size(0), -1});  // [B, T', C, frames, h, w]
    const Tensor all = at::zeros_like(x);
    for (int64_t frame = 0; frame < frames; ++frame)
      all.slice(2, frame, frame + (parts.size(1) - 1) * stride[0] + 1, stride[0])
          .add_(parts.select(3, frame).transpose(1, 2));
    return {all, dweight, dbias};
  }
  const at::IntArrayRef kernel = weight.sizes().slice(2);
  const Tensor rows = dy.flatten(2), matrix = weight.flatten(1);
  Tensor dx, dweight, dbias;
  if (wanted[0]) dx = at::col2im(matrix.t().matmul(rows), x.sizes().slice(2), kernel, dilation, padding, stride);
  if (wanted[1]) {
    const Tensor columns = at::im2col(x, kernel, dilation, padding, stride);
    dweight = rows.matmul(columns.transpose(1, 2)).sum(0).view(weight.sizes());
  }
  if (wanted[2]) dbias = rows.sum({0, 2});
  return {dx, dweight, dbias};
}

// --- norms of lists, with the conditions under which LibTorch makes one pass over all tensors ---

std::vector<Tensor> foreach_norm(at::TensorList parts, const at::Scalar& order, std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(!parts.empty(), "a list must not be empty");
  const double p = order.toDouble();
  TORCH_CHECK(p == 1 || p == 2 || p == std::numeric_limits<double>::infinity(), "other orders go part by part");
  const at::ScalarType type = dtype.value_or(parts[0].scalar_type());
  TORCH_CHECK(at::promoteTypes(parts[0].scalar_type(), type) == type, "results must not be narrower");
  std::vector<Tensor> norms;
  for (const Tensor& part : parts) {
    TORCH_CHECK(part.scalar_type() == parts[0].scalar_type() && part.device() == parts[0].device() &&
                    part.is_non_overlapping_and_dense(),
                "lists of several dtypes or devices, or with gaps, go part by part");
    norms.push_back(at::linalg_vector_norm(part, order, {}, false, type));  // makes no copy in the device's memory
  }
  return norms;
}

}  // namespace

void register_trap_fused_operators(torch::Library& aten) {
  aten.impl("mm.dtype_out", TORCH_FN(wide_mm));
  aten.impl("addmm.dtype_out", TORCH_FN(wide_addmm));
  aten.impl("_scaled_mm", TORCH_FN(scaled_mm));
  aten.impl("_grouped_mm", TORCH_FN(grouped_mm));
  aten.impl("_foreach_norm.Scalar", TORCH_FN(foreach_norm));
  if constexpr (arity(&at::_ops::_flash_attention_forward::call) == arity(&flash_forward))
    aten.impl("_flash_attention_forward", TORCH_FN(flash_forward));
  else
    aten.impl("_flash_attention_forward", TORCH_FN(flash_forward_of_pages));
  aten.impl("_flash_attention_backward", TORCH_FN(flash_backward));
  aten.impl("_fused_rms_norm", TORCH_FN(rms_forward));
  aten.impl("_fused_rms_norm_backward", TORCH_FN(rms_backward));
  aten.impl("native_group_norm", TORCH_FN(group_forward));
  aten.impl("convolution_overrideable", TORCH_FN(convolution_forward));
  aten.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

}  // namespace colossal::test
