#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "colossal/ops/attention/biased_paths.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

at::Tensor with_dense_features(const at::Tensor& x) { return x.stride(4) == 1 || x.size(4) == 1 ? x : x.contiguous(); }

/// Returns a new tensor with the sizes of `x` and its order of strides, so that a view of a transposed tensor gives a
/// transposed result. The features stay innermost.
at::Tensor empty_in_order_of(const at::Tensor& x) {
  std::vector<int64_t> order{0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  std::vector<int64_t> sizes, back(5, 4);
  for (size_t i = 0; i < order.size(); ++i) sizes.push_back(x.size(order[i])), back[order[i]] = static_cast<int64_t>(i);
  sizes.push_back(x.size(4));
  return at::empty(sizes, x.options().requires_grad(false)).permute(back);
}

/// The input in the form that kernels read.
struct Prepared {
  explicit Prepared(const BiasedInput& in)
      : q(with_dense_features(in.q)), k(with_dense_features(in.k)), v(with_dense_features(in.v)) {
    const auto host = at::TensorOptions().device(q.device());
    const AttentionBias& rules = in.rules;
    const int64_t queries = q.size(3), keys = k.size(3);
    if (rules.bias.defined()) bias = rules.bias.detach().to(wide_type(q)).contiguous();
    if (rules.keys.defined()) {
      key_bias = at::zeros(rules.keys.sizes(), host.dtype(wide_type(q)));
      key_bias.masked_fill_(rules.keys.to(q.device()).bitwise_not(), -std::numeric_limits<double>::infinity());
    }
    position = at::arange(keys - queries, keys, host.dtype(at::kLong));
    from = at::zeros({queries}, host.dtype(at::kLong));
    to = rules.causal ? position + 1 : at::full({queries}, keys, host.dtype(at::kLong));
    if (rules.key_documents.defined()) {
      query_documents = rules.query_documents.to(q.device(), at::kLong).contiguous();
      key_documents = rules.key_documents.to(q.device(), at::kLong).contiguous();
    }
  }
  at::Tensor q, k, v, bias, key_bias, position, from, to, query_documents, key_documents;
};

/// Returns the view of head `head` of group `group`, as the only head of its rows.
template <class T, class Pointed>
HeadView<Pointed> one_head(const at::Tensor& x, int64_t group, int64_t head) {
  if (!x.defined() || x.is_meta()) return {};
  return {pointer<T>(x) + group * x.stride(0) + head * x.stride(2), x.stride(1), 0, x.stride(3)};
}

/// Returns the task of one head of all rows of a group.
template <class T>
AttentionTask<T> task_of_head(const Prepared& in, const BiasedResult& result, double scale, int64_t group,
                              int64_t head) {
  AttentionTask<T> task{};
  const int64_t rows = in.q.size(1), item = group * in.q.size(2) + head;
  task.batch = rows, task.heads = task.kv_heads = 1;
  task.queries = in.q.size(3), task.keys = in.k.size(3), task.size = in.q.size(4);
  task.from = pointer<int64_t>(in.from), task.to = pointer<int64_t>(in.to);
  task.position = pointer<int64_t>(in.position);
  const auto part = [&](const auto* all, int64_t offset) { return all ? all + offset : nullptr; };
  task.documents = part(pointer<int64_t>(in.key_documents), group * rows * task.keys);
  task.query_documents = part(pointer<int64_t>(in.query_documents), group * rows * task.queries);
  task.bias = part(pointer<WideOf<T>>(in.bias), item * task.queries * task.keys);
  task.key_bias = part(pointer<WideOf<T>>(in.key_bias), group * rows * task.keys);
  task.scale = static_cast<WideOf<T>>(scale);
  task.q = one_head<T, const T>(in.q, group, head), task.k = one_head<T, const T>(in.k, group, head);
  task.v = one_head<T, const T>(in.v, group, head), task.out = one_head<T, T>(result.out, group, head);
  auto* log_sums = pointer<WideOf<T>>(result.log_sums);
  task.log_sums = log_sums ? log_sums + item * rows * task.queries : nullptr;
  return task;
}

/// Calls run(task, first head of the chunk, head, first row, last row, scratch) for runs of rows of one head, where
/// heads are counted through all groups. Heads are outermost, so that a thread reads the bias of few heads.
template <class T, class Make, class Run>
void over_rows_of_heads(const at::Tensor& q, const Kernels<T>& kernel, const Make& make, const Run& run) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(WideOf<T>));
  const int64_t rows = q.size(1), items = q.size(0) * q.size(2) * rows;
  const int64_t scratch = (kernel.attention_scratch(make(0)) + 2 * kLine - 1) / kLine * kLine;
  const at::Tensor memory = at::empty({parallel_chunks(items, 1) * scratch}, q.options().dtype(wide_type(q)));
  if (q.is_meta()) return;
  parallel_chunks_for(0, items, 1, [&](int64_t chunk, int64_t begin, int64_t end) {
    WideOf<T>* own = pointer<WideOf<T>>(memory) + chunk * scratch;
    for (int64_t item = begin; item < end;) {
      const int64_t head = item / rows, first = item % rows, last = std::min(rows, first + end - item);
      run(chunk, begin / rows, head, first, last, own);
      item += last - first;
    }
  });
}

/// Calls body(T()), on meta for the sizes of the scratch memory.
template <class Body>
void of_type(const at::Tensor& q, const Body& body) {
  with_element_type(q.is_meta() ? at::empty({0}, q.options().device(at::kCPU)) : q, body);
}

}  // namespace

BiasedResult kernel_biased_attention(const BiasedInput& in) {
  const Prepared ready(in);
  const at::Tensor& q = ready.q;
  const BiasedResult result{empty_in_order_of(in.q), at::empty({q.size(0), q.size(2), q.size(1), q.size(3)},
                                                               q.options().requires_grad(false).dtype(wide_type(q)))};
  of_type(q, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const auto make = [&](int64_t head) {
      return task_of_head<T>(ready, result, in.rules.scale, head / q.size(2), head % q.size(2));
    };
    over_rows_of_heads<T>(q, kernel, make,
                          [&](int64_t, int64_t, int64_t head, int64_t first, int64_t last, WideOf<T>* scratch) {
                            kernel.attention_forward(make(head), first, last, scratch);
                          });
  });
  return result;
}

BiasedGradients kernel_biased_gradients(const BiasedInput& in, const BiasedResult& result, const at::Tensor& gradient,
                                        bool wants_bias) {
  const Prepared ready(in);
  const at::Tensor &q = ready.q, dout = with_dense_features(gradient);
  BiasedGradients d{empty_in_order_of(in.q), empty_in_order_of(in.k), empty_in_order_of(in.v), {}};
  const int64_t rows = q.size(1), heads = q.size(0) * q.size(2), chunks = parallel_chunks(heads * rows, 1);
  const int64_t of_chunk = (heads * rows + chunks - 1) / chunks;
  // Each thread adds to a sum of its own for each of its heads. A thread begins anywhere in the rows of its first head.
  const int64_t owned = std::min(heads, (of_chunk + rows - 2) / rows + 1);
  at::Tensor sums;
  if (wants_bias)
    sums = at::zeros({chunks, owned, q.size(3), ready.k.size(3)}, q.options().requires_grad(false).dtype(wide_type(q)));
  of_type(q, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    T any{};
    const auto make = [&](int64_t head) {
      const int64_t group = head / q.size(2), own = head % q.size(2);
      auto task = task_of_head<T>(ready, result, in.rules.scale, group, own);
      task.dout = one_head<T, const T>(dout, group, own);
      task.dq = one_head<T, T>(d.q, group, own), task.dk = one_head<T, T>(d.k, group, own);
      task.dv = one_head<T, T>(d.v, group, own);
      if (d.k.is_meta()) task.dk.data = &any;  // tells the kernel that it needs the scratch memory of a backward pass
      return task;
    };
    over_rows_of_heads<T>(
        q, kernel, make,
        [&](int64_t chunk, int64_t first_head, int64_t head, int64_t first, int64_t last, WideOf<T>* scratch) {
          auto task = make(head);
          if (wants_bias)
            task.dbias = pointer<WideOf<T>>(sums) + (chunk * owned + head - first_head) * task.queries * task.keys;
          kernel.attention_backward(task, first, last, scratch);
        });
  });
  if (!wants_bias) return d;
  d.bias = at::zeros({heads, q.size(3), ready.k.size(3)}, sums.options());
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = chunk * of_chunk / rows, count = std::min(owned, heads - first);
    if (count > 0) d.bias.narrow(0, first, count).add_(sums[chunk].narrow(0, 0, count));
  }
  d.bias = d.bias.view(in.rules.bias.sizes()).to(in.rules.bias.scalar_type());
  return d;
}

}  // namespace colossal::ops
