#include "colossal/models/folding/esmfold_layers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/protein/residues.h"

namespace colossal::models::esmfold {
namespace {

constexpr int64_t kEnds = 2;            // <cls> and <eos>
constexpr int64_t kEmbeddedTypes = 23;  // the 20 types, X, one that is not read, and the mask of training

int64_t residues_of(const tensor::Batch& batch) { return batch.at("aatype").size(1); }

/// Returns the numbers of residues of the chains, [B, 1] int64.
at::Tensor lengths_of(const tensor::Batch& batch) { return batch.at("seq_mask").ne(0).sum(1, /*keepdim=*/true); }

/// Returns the mask of the tokens of the chains, with <cls> and <eos>: [B, N + 2] bool.
at::Tensor token_mask(const tensor::Batch& batch) {
  const at::Tensor lengths = lengths_of(batch);
  return at::arange(residues_of(batch) + kEnds, lengths.options()).unsqueeze(0).lt(lengths + kEnds);
}

nn::ForwardContext language_step(const nn::ForwardContext& step) { return esm2_step(token_mask(*step.batch), step); }

/// Returns the share of a hidden state in the sum, times the state without <cls> and <eos>.
at::Tensor shared(const States& states, int64_t index, const at::Tensor& hidden) {
  const at::Tensor share = states[kShares].select(1, index).view({-1, 1, 1});
  return hidden.narrow(1, 1, hidden.size(1) - kEnds).to(share.scalar_type()) * share;
}

Esm2BlockSizes block_sizes(const ModelShape& s) {
  return {.hidden = s.hidden,
          .heads = s.heads,
          .ffn = s.ffn,
          .norm_epsilon = s.norm_epsilon,
          .theta = s.own.as<EsmfoldSizes>().rope_theta};
}

nn::LinearOptions plain(int64_t in) { return {.deviation = 1 / std::sqrt(static_cast<double>(in))}; }

std::unique_ptr<nn::Vector> table(nn::Layers& make, const std::string& name, int64_t rows, int64_t features) {
  return make.vector(name, {rows, features}, {.features = 1, .init = nn::Init::normal(kDeviation)});
}

/// Returns the rows of a table whose first row gets no gradient, as transformers trains it.
at::Tensor lookup_of_types(const at::Tensor& table, const at::Tensor& types) {
  const at::Tensor rows = nn::lookup(table, types);
  const at::Tensor index = types.unsqueeze(-1);
  return rows.masked_fill(index.eq(0), 0) + rows.detach().masked_fill(index.ne(0), 0);
}

}  // namespace

bool has_language(const nn::ForwardContext& step) {
  return !step.training && step.batch && step.batch->find("language_states").defined();
}

std::vector<State> states_of(const ModelShape& s, at::ScalarType dtype) {
  const auto own = s.own.as<EsmfoldSizes>();
  const at::ScalarType wide = at::promote_types(dtype, at::kFloat);
  const auto state = [](const char* name, std::optional<at::ScalarType> type, auto sizes_after_rows) {
    const auto sizes = [sizes_after_rows](const nn::ForwardContext& step, int64_t) {
      std::vector<int64_t> all = sizes_after_rows(residues_of(*step.batch), has_language(step));
      all.insert(all.begin(), step.batch->rows());
      return all;
    };
    State made{.name = name, .dims = {}, .sizes = sizes, .dtype = type};
    made.dims.assign(1 + sizes_after_rows(1, false).size(), tensor::Dim::Other);
    made.dims.front() = tensor::Dim::Row;
    if (made.name == std::string("pair")) made.dims.at(1) = tensor::Dim::Token;  // ranks cut it (nn/axial_ranks.h)
    return made;
  };
  using Sizes = std::vector<int64_t>;
  return {state("hidden", {}, [=](int64_t n, bool known) { return Sizes{known ? 1 : n + kEnds, s.hidden}; }),
          state("shares", wide, [=](int64_t, bool) { return Sizes{own.language_layers + 1}; }),
          state("mixed", wide, [=](int64_t n, bool known) { return Sizes{known ? 1 : n, s.hidden}; }),
          state("language", {}, [=](int64_t n, bool) { return Sizes{n, own.single}; }),
          state("single", {}, [=](int64_t n, bool) { return Sizes{n, own.single}; }),
          state("pair", {}, [=](int64_t n, bool) { return Sizes{n, n, own.pair}; }),
          state("structure", {}, [=](int64_t n, bool) { return Sizes{n, own.structure}; }),
          state("frames", wide, [=](int64_t n, bool) { return Sizes{own.structure_layers, n, 7}; }),
          state("angles", wide, [=](int64_t n, bool) { return Sizes{own.structure_layers, n, 7, 2}; })};
}

LanguageStart::LanguageStart(const ModelShape& s, nn::Layers& make)
    : ranks_(make.axial_ranks()),
      own_(s.own.as<EsmfoldSizes>()),
      hidden_(s.hidden),
      ids_of_types_(
          at::tensor(own_.ids_of_types(), at::TensorOptions(make.parameters().options().device).dtype(at::kLong))),
      embedding_("embedding", static_cast<int64_t>(own_.tokens.size()), s.hidden,
                 {.token_dropout = own_.token_dropout, .mask_id = own_.id_of("<mask>")}, make),
      shares_(make.vector("language.shares", {own_.language_layers + 1}, {})) {}

at::Tensor LanguageStart::ids(const tensor::Batch& batch) const {
  const at::Tensor &types = batch.at("aatype"), lengths = lengths_of(batch);
  const at::Tensor letters = ids_of_types_.index({(types + 1).masked_fill(batch.at("seq_mask").eq(0), 0)});
  const auto column = [&](const char* token) {
    return at::full({types.size(0), 1}, own_.id_of(token), types.options());
  };
  const at::Tensor all = at::cat({column("<cls>"), letters, column("<pad>")}, 1);
  return all.scatter(1, lengths + 1, own_.id_of("<eos>"));
}

void LanguageStart::forward(States& states, const tensor::Batch& batch, const nn::ForwardContext& step) const {
  const at::Tensor values = shares_->value();
  const at::Tensor shares = values.to(ops::wide_type(values)).softmax(0);
  states[kShares] = shares.unsqueeze(0).repeat({batch.rows(), 1});
  if (has_language(step)) {
    states[kHidden] = at::zeros({batch.rows(), 1, hidden_}, values.options());
    states[kMixed] = at::zeros({batch.rows(), 1, hidden_}, shares.options());
    return;
  }
  // The embedding gives a rank its tokens, and the language model runs whole on each.
  nn::ForwardContext language = language_step(step);
  const at::Tensor tokens = ids(batch);
  if (ranks_->size() > 1)
    language.cut = std::make_shared<const nn::SequenceCut>(nn::near_even_cut(tokens.size(1), ranks_->size()));
  states[kHidden] = ranks_->gathered(embedding_.forward(tokens, language), 1, tokens.size(1));
  states[kMixed] = shared(states, 0, states[kHidden]);
}

LanguageBlock::LanguageBlock(const ModelShape& s, int64_t layer, nn::Layers& make)
    : layer_(layer), block_(concat("blocks.", layer), block_sizes(s), make) {
  if (layer + 1 == s.own.as<EsmfoldSizes>().language_layers)
    norm_after_ = make.layer_norm(concat("blocks.", layer, ".norm_after"), s.hidden, {s.norm_epsilon});
}

void LanguageBlock::forward(States& states, const nn::ForwardContext& step) const {
  if (has_language(step)) return;
  states[kHidden] = block_.forward(states[kHidden], language_step(step));
  const at::Tensor counted = norm_after_ ? norm_after_->forward(states[kHidden]) : states[kHidden];
  states[kMixed] = states[kMixed] + shared(states, layer_ + 1, counted);
}

TrunkStart::TrunkStart(const ModelShape& s, const std::string& name, nn::Layers& make)
    : ranks_(make.axial_ranks()), dtype_(make.parameters().options().dtype) {
  const auto own = s.own.as<EsmfoldSizes>();
  position_bins_ = own.position_bins;
  norm_ = make.layer_norm(name + ".language.norm", s.hidden, {});
  up_ = make.dense(name + ".language.up", s.hidden, own.single, plain(s.hidden));
  down_ = make.dense(name + ".language.down", own.single, own.single, plain(own.single));
  if (own.embeds_types) types_ = table(make, name + ".types.weight", kEmbeddedTypes, own.single);
  positions_ = table(make, name + ".positions.weight", 2 * own.position_bins + 2, own.pair);
  single_norm_ = make.layer_norm(name + ".recycled.single_norm", own.single, {});
  pair_norm_ = make.layer_norm(name + ".recycled.pair_norm", own.pair, {});
  distances_ = table(make, name + ".recycled.distances.weight", ops::kRecycledDistancesOfEsmFold.count + 1, own.pair);
}

at::Tensor TrunkStart::language(const at::Tensor& mixed, const nn::ForwardContext& step) const {
  if (has_language(step)) return step.batch->at("language_states").to(dtype_);
  const at::Tensor x = up_->forward(norm_->forward(mixed.to(dtype_)));
  const at::Tensor s = down_->forward(ops::activation("relu").plain(x));
  return types_ ? s + lookup_of_types(types_->value(), step.batch->at("aatype")) : s;
}

/// Without gradients z is made by rows, and in the place of the field if nothing reads it again.
at::Tensor TrunkStart::pairs(const tensor::Batch& batch, const nn::ForwardContext& step) const {
  const at::Tensor before = own_recycled_pairs(batch, *ranks_), &index = batch.at("residue_index");
  const at::Tensor beta = batch.at("recycled_beta"), seen = batch.at("seq_mask");
  const at::Tensor distances = distances_->value(), positions = positions_->value();
  const nn::Range own = ranks_->own(index.size(1));
  const auto rows_of = [&](int64_t first, int64_t count) {
    const auto rows = [&](const at::Tensor& x) { return x.narrow(1, own.first + first, count); };
    const at::Tensor offsets = (index.unsqueeze(1) - rows(index).unsqueeze(2)).clamp(-position_bins_, position_bins_);
    const at::Tensor hidden = (rows(seen).unsqueeze(2) * seen.unsqueeze(1)).eq(0);
    const at::Tensor squares =
        ops::squared_distances(rows(beta).to(ops::wide_type(beta)), beta.to(ops::wide_type(beta)));
    const at::Tensor bins = ops::bins_of_squares(squares, ops::kRecycledDistancesOfEsmFold);
    return pair_norm_->forward(before.narrow(1, first, count).to(dtype_)) + nn::lookup(distances, bins) +
           nn::lookup(positions, (offsets + position_bins_ + 1).masked_fill(hidden, 0));
  };
  const int64_t of_row = std::max<int64_t>(before.numel() / before.size(1), 1);
  if (at::GradMode::is_enabled()) return rows_of(0, own.size);
  // In a training pass backward may read the field again (nn::recomputed).
  const bool overwrites = !step.training && before.scalar_type() == dtype_;
  const at::Tensor z = overwrites ? before : at::empty(before.sizes(), before.options().dtype(dtype_));
  ranks_->for_runs(index.size(1), std::max<int64_t>(ops::kSliceElements / of_row, 1),
                   [&](int64_t first, int64_t count) { z.narrow(1, first, count).copy_(rows_of(first, count)); });
  return z;
}

void TrunkStart::forward(States& states, const nn::ForwardContext& step) const {
  const tensor::Batch& batch = *step.batch;
  states[kLanguage] = language(states[kMixed], step);
  states[kSingle] = states[kLanguage] + single_norm_->forward(batch.at("recycled_single").to(dtype_));
  states[kPair] = pairs(batch, step);
}

StructureEnd::StructureEnd(const ModelShape& s, const std::string& name, nn::Layers& make)
    : single_(make.dense(name + ".single", s.own.as<EsmfoldSizes>().single, s.own.as<EsmfoldSizes>().structure,
                         plain(s.own.as<EsmfoldSizes>().single))),
      pair_(make.dense(name + ".pair", s.own.as<EsmfoldSizes>().pair, s.own.as<EsmfoldSizes>().structure_pair,
                       plain(s.own.as<EsmfoldSizes>().pair))),
      module_(name + ".structure", s.own.as<EsmfoldSizes>().structure_sizes(), make) {}

void StructureEnd::forward(States& states, const nn::ForwardContext& step) const {
  const StackedLayers layers = stacked(module_.forward(single_->forward(states[kSingle]), pair_->forward(states[kPair]),
                                                       step.batch->at("seq_mask"), step));
  states[kStructure] = layers.structure;
  states[kFrames] = layers.frames;
  states[kAngles] = layers.angles;
}

}  // namespace colossal::models::esmfold
