#include "colossal/parallel/tensor/layers_1d.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/comm/collectives.h"
#include "colossal/ops/matmul.h"
#include "colossal/parallel/tensor/vocabulary_1d.h"

namespace colossal::parallel {
namespace {

using nn::Init;
using nn::LinearOptions;
using nn::Parameter;
using tensor::ShardSpec;

const std::vector<std::string> kAxis{"tensor"};

/// y_local = x W_local^T + b_local: the out features of this rank.
struct ColumnLinear : nn::Linear {
  ColumnLinear(nn::Parameters& p, comm::Group& group, const std::string& name, int64_t in, int64_t out,
               const LinearOptions& o)
      : group(group),
        weight(p.add(name + ".weight", ShardSpec::split({out, in}, 0, kAxis, o.segments), Init::normal(o.deviation), true)),
        bias(o.bias ? &p.add(name + ".bias", ShardSpec::split({out}, 0, kAxis, o.segments), Init::zeros(), false)
                    : nullptr) {}
  at::Tensor forward(const at::Tensor& x) override {
    return ops::linear(comm::copy_to(x, group), weight.value, bias ? bias->value : at::Tensor());
  }
  comm::Group& group;
  Parameter& weight;
  Parameter* bias;
};

/// y = sum over ranks of x_local W_local^T, + b: added once, after the sum.
struct RowLinear : nn::Linear {
  RowLinear(nn::Parameters& p, comm::Group& group, const std::string& name, int64_t in, int64_t out, const LinearOptions& o)
      : group(group),
        weight(p.add(name + ".weight", ShardSpec::split({out, in}, 1, kAxis, o.segments), Init::normal(o.deviation), true)),
        bias(o.bias ? &p.add(name + ".bias", ShardSpec::whole({out}), Init::zeros(), false) : nullptr) {}
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor y = comm::reduce_from(ops::linear(x, weight.value, {}), group);
    return bias ? y + bias->value : y;
  }
  comm::Group& group;
  Parameter& weight;
  Parameter* bias;
};

/// Identity on a parameter whose rows [first, end) are copies held by all ranks of `group`: each copy sees only its own query
/// heads, so the true gradient is the sum over the copies.
struct SumCopiesGradient : torch::autograd::Function<SumCopiesGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& parameter, int64_t first,
                            comm::Group* group) {
    context->saved_data["first"] = first;
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    return parameter.view_as(parameter);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const int64_t first = context->saved_data["first"].toInt();
    auto* group = reinterpret_cast<comm::Group*>(context->saved_data["group"].toInt());
    at::Tensor gradient = gradients[0].clone();  // never write into a gradient that somebody else may hold
    at::Tensor copies = gradient.narrow(0, first, gradient.size(0) - first);
    group->all_reduce(copies, comm::Reduce::Sum).wait();
    return {gradient, {}, {}};
  }
};

struct ColumnHeads : nn::HeadProjection {
  ColumnHeads(nn::Parameters& p, comm::Mesh& mesh, const std::string& name, const nn::AttentionShape& s, LinearOptions o)
      : shape(s), split(s, mesh.size("tensor")), copies(mesh.neighbours("tensor", split.kv_copies)),
        fused(p, mesh.group("tensor"), name, s.hidden, (s.heads + 2 * s.kv_heads) * s.head_dim, with_heads(o)) {}
  nn::Heads forward(const at::Tensor& x) override {
    const at::Tensor y = ops::linear(comm::copy_to(x, fused.group), shared(fused.weight.value),
                                     fused.bias ? shared(fused.bias->value) : at::Tensor());
    return nn::split_heads(y, split.heads_local, split.kv_heads_local, shape.head_dim);
  }
  int64_t kv_heads_local() const override { return split.kv_heads_local; }

  LinearOptions with_heads(LinearOptions options) const {
    options.segments = split.fused();
    return options;
  }
  at::Tensor shared(const at::Tensor& parameter) const {
    if (split.kv_copies == 1) return parameter;
    return SumCopiesGradient::apply(parameter, split.heads_local * shape.head_dim, &copies);
  }
  nn::AttentionShape shape;
  nn::HeadSplit split;
  comm::Group& copies;
  ColumnLinear fused;
};

}  // namespace

Layers1D::Layers1D(nn::Parameters& parameters, comm::Mesh& mesh)
    : SerialLayers(parameters), mesh_(mesh), group_(mesh.group("tensor")) {}

std::unique_ptr<nn::Linear> Layers1D::expand(const std::string& name, int64_t in, int64_t out, const LinearOptions& o) {
  return std::make_unique<ColumnLinear>(parameters(), group_, name, in, out, o);
}

std::unique_ptr<nn::Linear> Layers1D::contract(const std::string& name, int64_t in, int64_t out, const LinearOptions& o) {
  return std::make_unique<RowLinear>(parameters(), group_, name, in, out, o);
}

std::unique_ptr<nn::HeadProjection> Layers1D::heads(const std::string& name, const nn::AttentionShape& s,
                                                    const LinearOptions& o) {
  return std::make_unique<ColumnHeads>(parameters(), mesh_, name, s, o);
}

std::unique_ptr<nn::Linear> Layers1D::from_heads(const std::string& name, const nn::AttentionShape& s,
                                                 const LinearOptions& o) {
  LinearOptions options = o;
  options.segments = {nn::HeadSplit(s, group_.size()).q};
  return std::make_unique<RowLinear>(parameters(), group_, name, s.heads * s.head_dim, s.hidden, options);
}

std::unique_ptr<nn::Embedding> Layers1D::embedding(const std::string& name, int64_t vocabulary, int64_t hidden,
                                                   double deviation) {
  return std::make_unique<VocabularyEmbedding1D>(parameters(), group_, name, vocabulary, hidden, deviation);
}

std::unique_ptr<nn::LossHead> Layers1D::lm_head(const std::string& name, int64_t hidden, int64_t vocabulary,
                                                double deviation, nn::Embedding* tied) {
  nn::Parameter& weight = tied ? tied->weight()
                               : parameters().add(name + ".weight", ShardSpec::split({vocabulary, hidden}, 0, kAxis),
                                                  Init::normal(deviation), true);
  return std::make_unique<VocabularyLossHead1D>(weight, group_);
}

}  // namespace colossal::parallel
