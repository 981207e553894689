#include "colossal/infer/decoding/multi_token_drafts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/ops/attention/paged.h"

namespace colossal::infer {
namespace {

const models::MultiTokenLayers& layers_in(distributed::DistributedModel& model) {
  const auto& layers = model.decoding_model().multi_token;
  require(layers != nullptr, "engine", "drafts of multi-token layers need a model that has some: got a ",
          model.decoding_model().shape.architecture->name, " without; set model.multi_token_layers in training");
  return *layers;
}

/// Returns token `at` of the sequence, or of its draft, which follows. The last token stands in for unknown ones, which
/// only affect drafts.
int64_t token_at(const MultiTokenDrafts::Sequence& sequence, const std::vector<int64_t>& draft, int64_t at) {
  const auto known = static_cast<int64_t>(sequence.tokens.size());
  if (at < known) return sequence.tokens[at];
  return at - known < static_cast<int64_t>(draft.size()) ? draft[at - known] : sequence.tokens.back();
}

}  // namespace

/// The layers of one write(), on a rank of the last stage.
class MultiTokenDrafts::Pass {
 public:
  Pass(MultiTokenDrafts& all, const std::vector<Sequence>& sequences,
       const distributed::DistributedModel::MakeReady& ready)
      : all_(all), sequences_(sequences), ready_(ready), drafts_(sequences.size()) {}

  std::vector<std::vector<int64_t>> run() {
    const int64_t layers = all_.layers_.count();
    std::vector<int64_t> places;
    for (const Sequence& s : sequences_) {
      for (int64_t i = 0; i < s.count; ++i) places.push_back(s.place + i);
      ends_.push_back(static_cast<int64_t>(places.size()) - 1);
    }
    at::Tensor x = all_.runner_.hidden().index_select(1, there(places));
    for (int64_t k = 0; k < layers; ++k) x = read(k, x);
    for (int64_t k = layers; any_wants(k); ++k) x = again(k, x);
    return std::move(drafts_);
  }

 private:
  /// The tokens of one application of a layer, as a packed row.
  struct Row {
    std::vector<int64_t> ids, positions;
    std::vector<ops::PagedSequence> sequences;
    nn::Sequences packed;
  };

  at::Tensor there(const std::vector<int64_t>& numbers) const {
    return at::tensor(numbers, at::TensorOptions().dtype(at::kLong).device(all_.model_.parameters().options().device));
  }

  bool any_wants(int64_t k) const {
    return std::any_of(sequences_.begin(), sequences_.end(), [k](const Sequence& s) { return s.max_draft_tokens > k; });
  }

  // Layer k of all accepted tokens. Draft token k follows the last of them.
  at::Tensor read(int64_t k, const at::Tensor& x) {
    Row row;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const Sequence& s = sequences_[i];
      for (int64_t at = s.first; at < s.first + s.count; ++at)
        row.ids.push_back(token_at(s, drafts_[i], at + k + 1)), row.positions.push_back(at);
      row.sequences.push_back({s.blocks, s.first});
      row.packed.lengths.push_back(s.count);
    }
    return apply(k, k, x, std::move(row));
  }

  // The last layer once more, for draft token k: one token of each sequence that wants it.
  at::Tensor again(int64_t k, const at::Tensor& x) {
    const int64_t layers = all_.layers_.count();
    Row row;
    std::vector<int64_t> used;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const Sequence& s = sequences_[i];
      const int64_t before = std::exchange(ends_[i], static_cast<int64_t>(used.size()));
      if (s.max_draft_tokens <= k) continue;
      used.push_back(before);
      const int64_t at = s.first + s.count + k - layers;
      row.ids.push_back(drafts_[i].back()), row.positions.push_back(at);
      row.sequences.push_back({s.blocks, at});
      row.packed.lengths.push_back(1);
    }
    return apply(layers - 1, k, x.index_select(1, there(used)), std::move(row));
  }

  // Applies a layer and appends draft token k to the drafts that want it.
  at::Tensor apply(int64_t layer, int64_t k, const at::Tensor& x, Row row) {
    // A layout that splits the batch has a copy of the row for each part, as in ModelRunner.
    const int64_t rows = all_.model_.decoding_model().batch_parts;
    const auto repeated = [&](const std::vector<int64_t>& numbers) { return there(numbers).repeat({rows, 1}); };
    all_.runner_.cache().take(std::move(row.sequences));
    const nn::ForwardContext step =
        ready_(nn::step_of(nn::token_batch(repeated(row.ids), repeated(row.positions)),
                           {.parts = {std::move(row.packed), nn::Decoding{&all_.runner_.cache()}}}));
    const at::Tensor out = all_.layers_.forward(layer, x, step);
    std::vector<int64_t> last;
    for (size_t i = 0; i < sequences_.size(); ++i)
      if (sequences_[i].max_draft_tokens > k) last.push_back(ends_[i]);
    if (last.empty()) return out;
    const at::Tensor logits = all_.layers_.logits(layer, out.index_select(1, there(last)), step)[0];
    const at::Tensor best = logits.argmax(-1).cpu();
    const int64_t* token = best.const_data_ptr<int64_t>();
    for (size_t i = 0; i < sequences_.size(); ++i)
      if (sequences_[i].max_draft_tokens > k) drafts_[i].push_back(*token++);
    return out;
  }

  MultiTokenDrafts& all_;
  const std::vector<Sequence>& sequences_;
  const distributed::DistributedModel::MakeReady& ready_;
  std::vector<std::vector<int64_t>> drafts_;
  std::vector<int64_t> ends_;  // index of the last token of each sequence in the row of the last application
};

int64_t MultiTokenDrafts::layers_of(distributed::DistributedModel& model) {
  const auto& layers = model.decoding_model().multi_token;
  return layers ? layers->count() : 0;
}

MultiTokenDrafts::MultiTokenDrafts(distributed::DistributedModel& model, ModelRunner& runner)
    : model_(model), runner_(runner), layers_(layers_in(model)) {}

int64_t MultiTokenDrafts::entries_for(const Sequence& sequence, int64_t draft_tokens) const {
  return sequence.first + sequence.count + std::max<int64_t>(0, draft_tokens - layers_.count());
}

std::vector<std::vector<int64_t>> MultiTokenDrafts::write(const std::vector<Sequence>& sequences) {
  const at::NoGradGuard no_grad;
  int64_t most = 1;
  for (const Sequence& s : sequences) most = std::max(most, s.max_draft_tokens);
  const auto count = static_cast<int64_t>(sequences.size());
  const auto options = at::TensorOptions().dtype(at::kLong).device(model_.parameters().options().device);
  const at::Tensor none = at::zeros({count, most}, options);
  const at::Tensor sent = model_.at_end(
      [&](const distributed::DistributedModel::MakeReady& ready) {
        std::vector<int64_t> numbers;
        for (std::vector<int64_t>& draft : Pass(*this, sequences, ready).run()) {
          draft.resize(static_cast<size_t>(most));
          numbers.insert(numbers.end(), draft.begin(), draft.end());
        }
        return at::tensor(numbers, options).view({count, most});
      },
      none);
  const at::Tensor all = sent.cpu();
  const int64_t* first = all.const_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> drafts;
  for (const Sequence& s : sequences) {
    drafts.emplace_back(first, first + s.max_draft_tokens);
    first += most;
  }
  return drafts;
}

}  // namespace colossal::infer
