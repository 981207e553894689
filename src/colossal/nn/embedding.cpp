#include "colossal/nn/embedding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/nn/layers.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/gradient_sum.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/read_scope.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::nn {
namespace {

/// Computes table[ids[i]] += rows[i] on the CPU. A word may occur thousands of times, so rows of narrow dtypes are
/// summed in fp32 and each row of the table is rounded once.
void add_rows(at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows) {
  const auto type = ops::wide_type(table);
  if (table.scalar_type() == type) {
    table.index_add_(0, ids, rows);
    return;
  }
  const auto [used, inverse] = at::_unique(ids, /*sorted=*/true, /*return_inverse=*/true);
  at::Tensor sums = table.index_select(0, used).to(type);
  table.index_copy_(0, used, sums.index_add_(0, inverse, rows.to(type)).to(table.scalar_type()));
}

struct Lookup : torch::autograd::Function<Lookup> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& table, const at::Tensor& ids) {
    if (context) context->save_for_backward({table, ids});
    if (!table.is_meta()) return at::embedding(table, ids);
    const tensor::ReadScope read({table});  // LibTorch has no kernel of embedding or its backward on meta
    std::vector<int64_t> sizes = ids.sizes().vec();
    sizes.push_back(table.size(1));
    return at::empty(sizes, table.options());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &table = saved[0], &ids = saved[1];
    const at::Tensor rows = gradients[0].reshape({-1, table.size(1)}), none;
    if (table.is_cpu() || table.is_meta()) {
      const at::Tensor kept = ops::gradient_sum(table);
      at::Tensor sum = kept.defined() ? kept : at::zeros(table.sizes(), rows.options());
      if (table.is_cpu()) add_rows(sum, ids.reshape({-1}), rows);
      return {kept.defined() ? none : sum, none};
    }
    // On an accelerator index_add_ adds in any order, so replicas of a table would diverge.
    const at::Tensor sum =
        at::embedding_dense_backward(rows.to(ops::wide_type(table)).contiguous(), ids.reshape({-1}), table.size(0),
                                     /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
    return {sum.to(table.scalar_type()), none};
  }
};

/// A table of which each rank has all rows, with its features.
class PositionTable final : public Embedding {
 public:
  PositionTable(Layers& make, const std::string& name, int64_t length, int64_t hidden, double deviation)
      : tokens_(make.own_tokens()),
        table_(make.vector(name + ".weight", {length, hidden},
                           {.features = 1, .init = Init::normal(deviation), .decay = true})) {}
  at::Tensor forward(const at::Tensor& ids, const ForwardContext& step) override {
    return lookup(table_->value(), tokens_(step).of(ids));
  }
  Parameter& weight() override { return table_->parameter(); }

 private:
  OwnTokens tokens_;
  std::unique_ptr<Vector> table_;
};

}  // namespace

at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids) {
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record(
        {"lookup", "VC,...->...C", {table, ids}, [](const auto& in) { return lookup(in[0], in[1]); }});
  return tensor::apply_function<Lookup>(table, ids);
}

std::unique_ptr<Embedding> Layers::positions(const std::string& name, int64_t length, int64_t hidden,
                                             double deviation) {
  return std::make_unique<PositionTable>(*this, name, length, hidden, deviation);
}

}  // namespace colossal::nn
