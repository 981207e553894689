#include "colossal/nn/token_adapters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/running_step.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/products/prepacked_matrix.h"

namespace colossal::nn {
namespace {

constexpr const char* kTokenAdapter = "adapter";

/// A matrix [out, in], packed where its kernels are.
struct SmallMatrix {
  SmallMatrix(const at::Tensor& value, const at::TensorOptions& like) {
    const at::Tensor own = value.to(like).contiguous();
    const bool is_narrow = own.scalar_type() == at::kBFloat16;
    if (own.is_cpu() && (is_narrow || own.scalar_type() == at::kFloat))
      packed = ops::PrepackedMatrix::of(own, is_narrow ? ops::PackedType::Bf16 : ops::PackedType::Float);
    else
      plain = own;
  }
  int64_t outputs() const { return packed ? packed->outputs() : plain.size(0); }
  int64_t bytes() const { return packed ? packed->bytes() : static_cast<int64_t>(plain.nbytes()); }

  std::optional<ops::PrepackedMatrix> packed{};
  at::Tensor plain{};
};

/// Returns the product of rows ends[e - 1] to ends[e] of x with *matrices[e].
at::Tensor grouped(const std::vector<const SmallMatrix*>& matrices, const at::Tensor& x,
                   const std::vector<int64_t>& ends) {
  if (matrices.front()->packed) {
    std::vector<const ops::PrepackedMatrix*> packed;
    for (const SmallMatrix* matrix : matrices) packed.push_back(&*matrix->packed);
    return ops::PrepackedMatrix::multiply_groups(packed, x, ends);
  }
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (size_t e = 0; e < ends.size(); first = ends[e++])
    parts.push_back(ops::matmul_nt(x.narrow(0, first, ends[e] - first), matrices[e]->plain));
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

/// Rows [row, row + count) of this rank's block of the weight, with columns [first, first + rank) of x At.
struct TokenPiece {
  int64_t row, count, first, rank;
  bool operator==(const TokenPiece&) const = default;
};

/// The matrices of one adapter for a weight.
struct OneAdapter {
  int64_t adapter;
  SmallMatrix a;  // A of all parts, one below the other
  std::vector<SmallMatrix> b;
};

/// The adapters whose matrices have the same shapes.
struct AlikeAdapters {
  int64_t ranks;  // rows of A
  std::vector<TokenPiece> pieces;
  std::vector<OneAdapter> adapters;
};

/// Returns the columns of a whole tensor [n, inputs] that this rank has; others are zeros.
at::Tensor own_inputs(const at::Tensor& whole, const std::vector<tensor::LocalBox>& boxes, int64_t inputs) {
  at::Tensor own = at::zeros({whole.size(0), inputs}, whole.options());
  for (const tensor::LocalBox& box : boxes)
    own.narrow(1, box.local_start[1], box.size[1]).copy_(whole.narrow(1, box.start[1], box.size[1]));
  return own;
}

/// Outputs of a part on this rank: rows [row, row + count) of the block of the weight, from row `own` of B on.
struct OwnOutputs {
  int64_t row, count, own;
};

std::vector<OwnOutputs> outputs_on_rank(const TokenAdapter& part, const std::vector<tensor::LocalBox>& boxes) {
  std::vector<OwnOutputs> found;
  std::set<int64_t> seen;  // inputs of the same outputs may be in several boxes
  for (const tensor::LocalBox& box : boxes) {
    const int64_t first = std::max(box.start[0], part.first_output),
                  end = std::min(box.start[0] + box.size[0], part.first_output + part.outputs);
    if (first >= end || !seen.insert(first).second) continue;
    const OwnOutputs own{box.local_start[0] + first - box.start[0], end - first, first - part.first_output};
    const bool continues = !found.empty() && found.back().row + found.back().count == own.row &&
                           found.back().own + found.back().count == own.own;
    if (continues)
      found.back().count += own.count;
    else
      found.push_back(own);
  }
  return found;
}

}  // namespace

AdaptersOfTokens::AdaptersOfTokens(const std::vector<Run>& runs, at::Device device) {
  std::map<int64_t, std::vector<int64_t>> rows;
  for (const Run& run : runs) {
    std::vector<int64_t>& own = rows[run.adapter];
    for (int64_t i = 0; i < run.tokens; ++i) own.push_back(tokens_ + i);
    tokens_ += run.tokens;
  }
  is_one_ = rows.size() <= 1;
  for (const auto& [adapter, own] : rows)
    if (adapter != kBase) groups_.push_back({adapter, at::tensor(own, at::dtype(at::kLong)).to(device)});
}

class TokenAdapters::OfWeight {
 public:
  OfWeight(const std::vector<TokenAdapter>& given, const Parameter& weight,
           const tensor::MeshCoordinates& coordinates) {
    const std::vector<tensor::LocalBox> boxes = weight.spec.local_boxes(coordinates);
    const int64_t inputs = weight.spec.local_shape(coordinates)[1];
    const at::TensorOptions like = weight.value.options().requires_grad(false);
    std::map<int64_t, std::vector<const TokenAdapter*>> by_adapter;
    for (const TokenAdapter& one : given) by_adapter[one.adapter].push_back(&one);
    for (auto& [adapter, parts] : by_adapter) {
      // in one order, so that folders and runs with the same modules have matrices of the same shapes
      std::sort(parts.begin(), parts.end(), [](const TokenAdapter* one, const TokenAdapter* other) {
        return one->first_output < other->first_output;
      });
      add(adapter, parts, boxes, inputs, like);
    }
  }

  /// Adds s (x At) Bt of each token's adapter to y.
  void add_to(at::Tensor& y, const at::Tensor& x, const AdaptersOfTokens& tokens) const {
    for (const AlikeAdapters& alike : alike_) {
      std::vector<const OneAdapter*> present;
      std::vector<const SmallMatrix*> matrices;
      std::vector<at::Tensor> rows;
      std::vector<int64_t> ends;
      for (const AdaptersOfTokens::Group& group : tokens.groups()) {
        const auto found = std::find_if(alike.adapters.begin(), alike.adapters.end(),
                                        [&](const OneAdapter& one) { return one.adapter == group.adapter; });
        if (found == alike.adapters.end()) continue;
        present.push_back(&*found);
        matrices.push_back(&found->a);
        rows.push_back(group.rows);
        ends.push_back((ends.empty() ? 0 : ends.back()) + group.rows.size(0));
      }
      if (present.empty()) continue;
      at::Tensor places;
      if (tokens.is_one())
        ends.back() = x.size(0);
      else
        places = rows.size() == 1 ? rows.front() : at::cat(rows);
      const at::Tensor narrow = grouped(matrices, places.defined() ? x.index_select(0, places) : x, ends);
      for (size_t p = 0; p < alike.pieces.size(); ++p) {
        const TokenPiece& piece = alike.pieces[p];
        for (size_t e = 0; e < present.size(); ++e) matrices[e] = &present[e]->b[p];
        const at::Tensor wide = grouped(matrices, narrow.narrow(1, piece.first, piece.rank), ends);
        at::Tensor outputs = y.narrow(1, piece.row, piece.count);
        if (places.defined())
          outputs.index_add_(0, places, wide);
        else
          outputs.add_(wide);
      }
    }
  }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const AlikeAdapters& alike : alike_)
      for (const OneAdapter& one : alike.adapters) {
        sum += one.a.bytes();
        for (const SmallMatrix& b : one.b) sum += b.bytes();
      }
    return sum;
  }

 private:
  void add(int64_t adapter, const std::vector<const TokenAdapter*>& parts, const std::vector<tensor::LocalBox>& boxes,
           int64_t inputs, const at::TensorOptions& like) {
    std::vector<at::Tensor> all;
    std::vector<TokenPiece> pieces;
    std::vector<SmallMatrix> b;
    int64_t first = 0;
    for (const TokenAdapter* part : parts) {
      const int64_t rank = part->a.size(0);
      all.push_back(own_inputs(part->a, boxes, inputs));
      for (const OwnOutputs& own : outputs_on_rank(*part, boxes)) {
        pieces.push_back({own.row, own.count, first, rank});
        b.emplace_back(part->b.narrow(0, own.own, own.count).to(at::kDouble).mul(part->scale), like);  // rounded once
      }
      first += rank;
    }
    if (pieces.empty()) return;  // other ranks have these outputs
    auto alike = std::find_if(alike_.begin(), alike_.end(),
                              [&](const AlikeAdapters& one) { return one.ranks == first && one.pieces == pieces; });
    if (alike == alike_.end()) alike = alike_.insert(alike, AlikeAdapters{first, pieces, {}});
    alike->adapters.push_back({adapter, SmallMatrix(at::cat(all), like), std::move(b)});
  }

  std::vector<AlikeAdapters> alike_;
};

namespace {

class TokenAdaptersProduct final : public DirectWrapper {
 public:
  TokenAdaptersProduct(std::shared_ptr<const DirectProduct> inner, std::shared_ptr<const TokenAdapters::OfWeight> own,
                       std::string weight)
      : DirectWrapper(std::move(inner)), own_(std::move(own)), weight_(std::move(weight)) {}

  at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    at::Tensor y = inner().local_y(x, weight, bias, out, saved);
    const RunningStep* running = RunningStep::current();
    const auto* tokens = running ? running->step.parts.find<AdaptersOfTokens>() : nullptr;
    if (!tokens || tokens->groups().empty()) return y;
    require(!saved, kTokenAdapter, "tokens with adapters of their own support forward only: got a pass of ", weight_,
            " that needs gradients; run it without gradients");
    require(tokens->is_one() || tokens->tokens() == x.size(0), kTokenAdapter, "the rows of ", weight_,
            " must be the tokens of the step: got ", x.size(0), " rows of ", tokens->tokens(),
            " tokens; merge the adapters that have it with `colossal export`");
    own_->add_to(y, x, *tokens);
    return y;
  }

 private:
  std::shared_ptr<const TokenAdapters::OfWeight> own_;
  std::string weight_;
};

}  // namespace

TokenAdapters::TokenAdapters() = default;
TokenAdapters::~TokenAdapters() = default;

void TokenAdapters::add(TokenAdapter adapter) {
  require(adapter.adapter >= 0 && adapter.a.dim() == 2 && adapter.b.dim() == 2 &&
              adapter.a.size(0) == adapter.b.size(1) && adapter.b.size(0) == adapter.outputs,
          kTokenAdapter, "A and B of ", adapter.weight, " must be [r, in] and [", adapter.outputs, ", r]: got ",
          adapter.a.sizes(), " and ", adapter.b.sizes());
  const std::string weight = adapter.weight;
  given_[weight].push_back(std::move(adapter));
}

std::shared_ptr<const Product> TokenAdapters::wrap(std::shared_ptr<const Product> product, const Parameter& weight,
                                                   const tensor::MeshCoordinates& coordinates) {
  const Parameter& whole = weight.stack ? *weight.stack : weight;
  const std::string name = whole.own_name();
  const auto found = given_.find(name);
  if (found == given_.end() && !of_weight_.contains(name)) return product;
  require(!weight.stack, kTokenAdapter, "adapters that requests choose must be of layers that read all tokens: got ",
          name, ", the matrices of experts; merge this adapter with `colossal export`");
  require(name.find(".kv_up.") == std::string::npos, kTokenAdapter,
          "adapters that requests choose must leave the keys and values of latents as they are: got ", name,
          "; merge this adapter with `colossal export`");
  has_product_[name] = true;
  if (!weight.value.defined()) return product;  // another stage multiplies with it
  auto direct = std::dynamic_pointer_cast<const DirectProduct>(product);
  require(direct != nullptr, kTokenAdapter, "adapters that requests choose need a layout that multiplies blocks where ",
          "they are: got another one for ", name, "; set tensor.mode = 1d and tensor.sequence = false");
  std::shared_ptr<const OfWeight>& own = of_weight_[name];
  if (!own) own = made(found->second, weight, coordinates);
  return std::make_shared<TokenAdaptersProduct>(std::move(direct), own, name);
}

std::shared_ptr<const TokenAdapters::OfWeight> TokenAdapters::made(const std::vector<TokenAdapter>& given,
                                                                   const Parameter& weight,
                                                                   const tensor::MeshCoordinates& coordinates) {
  for (const TokenAdapter& one : given)
    require(one.a.size(1) == weight.spec.shape[1] && one.first_output >= 0 &&
                one.first_output + one.outputs <= weight.spec.shape[0],
            kTokenAdapter, "an adapter of ", weight.name, " must fit the weight ", at::IntArrayRef(weight.spec.shape),
            ": got A ", one.a.sizes(), " and B ", one.b.sizes(), "; it belongs to another base");
  return std::make_shared<const OfWeight>(given, weight, coordinates);
}

void TokenAdapters::check() {
  for (const auto& [weight, adapters] : given_)
    require(has_product_.contains(weight), kTokenAdapter,
            "adapters that requests choose must be of linear layers: got ", weight,
            ", with which no layer multiplies alone; merge this adapter with `colossal export`");
  given_.clear();
}

int64_t TokenAdapters::bytes() const {
  int64_t sum = 0;
  for (const auto& [weight, own] : of_weight_) sum += own->bytes();
  return sum;
}

}  // namespace colossal::nn
