#include "colossal/infer/embeddings/embed.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"

namespace colossal::infer {
namespace {

bool has_pooler(distributed::DistributedModel& model) {
  const auto& all = model.parameters().declared();
  return std::any_of(all.begin(), all.end(), [&](const nn::Parameter& p) {
    return p.model == model.name() && p.own_name() == "head.pooler.weight";
  });
}

/// Returns the index of the first token of each text: [texts].
at::Tensor begins_of(const std::vector<int64_t>& lengths, at::Device device) {
  std::vector<int64_t> places;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    places.push_back(begin);
    begin += length;
  }
  return at::tensor(places, at::TensorOptions().dtype(at::kLong).device(device));
}

}  // namespace

Embedder::Embedder(distributed::DistributedModel& distributed, const EmbedOptions& options)
    : model_(distributed), options_(options) {
  const models::Model& model = distributed.decoding_model();
  const models::Task task = model.shape.task();
  const std::string& family = model.shape.architecture->name;
  require(task.reads_text(), "embed", "embedding needs a model that reads text: got a ", family, ", which ",
          task.purpose());
  require(!task.answers(), "embed", "embedding needs a model with one stack of blocks: got a ", family,
          ", whose blocks read a source and a target");
  require(!task.scores(), "embed", "embedding needs a model that ends in hidden states: got a ", family, ", which ",
          task.purpose());
  const bool by_head = options.pooling == Pooling::Pooler;
  require(!by_head || has_pooler(distributed), "embed", "pooling `pooler` needs a BERT that has one: got ",
          task.generates() ? "a " : concat("objective ", task.objective, " of a "), family,
          "; use cls, mean, max or last");
  require(!distributed.divides_states(), "embed",
          "embedding needs ranks that hold whole hidden states: got a layout that divides them; use "
          "parallel.tensor.mode = \"1d\" without parallel.sequence and parallel.tensor.sequence");
}

void Embedder::check(const std::vector<int64_t>& text) const {
  const models::ModelShape& shape = model_.model().shape;
  require(!text.empty(), "embed", "a text must have at least one token; leave empty texts out");
  require(static_cast<int64_t>(text.size()) <= shape.positions, "embed", "a text must fit the model's ",
          shape.positions, " positions: got ", text.size(), " tokens");
  for (const int64_t id : text)
    require(id >= 0 && id < shape.vocabulary, "embed", "ids must lie in the model's vocabulary of ", shape.vocabulary,
            ": got ", id, "; is this the model's tokenizer?");
}

at::Tensor Embedder::run(const std::vector<int64_t>& ids, const std::vector<int64_t>& lengths) {
  const nn::Parameters::Options& of = model_.parameters().options();
  const auto on_device = at::TensorOptions().dtype(at::kLong).device(of.device);
  std::vector<int64_t> positions;
  for (const int64_t length : lengths)
    for (int64_t i = 0; i < length; ++i) positions.push_back(i);
  const auto row = [&](const std::vector<int64_t>& numbers) { return at::tensor(numbers, on_device).unsqueeze(0); };
  // The reach of each text is its own length, so that no text depends on a longer one beside it.
  const nn::ForwardContext step = nn::step_of(nn::token_batch(row(ids), row(positions)),
                                              {.parts = {nn::Sequences{.lengths = lengths, .reach = lengths}}});
  const models::Model& model = model_.decoding_model();
  const auto pool = [&](int, const models::States& end, const nn::ForwardContext& own) {
    if (options_.pooling != Pooling::Pooler) return pooled(end[0], lengths, options_.pooling);
    // one row per text, because the pooler reads the first token of each row
    const at::Tensor first = end[0].index_select(1, begins_of(lengths, end[0].device())).transpose(0, 1);
    return model.norm(first, own).squeeze(1);
  };
  const auto count = static_cast<int64_t>(lengths.size());
  const at::Tensor like =
      at::empty({count, model.shape.hidden},
                at::TensorOptions().dtype(at::promote_types(of.dtype, at::kFloat)).device(of.device));
  // The norm of a BERT begins its head.
  at::Tensor vectors = model.shape.task().generates() ? model_.everywhere(step, pool, like)
                                                      : model_.everywhere_before_norm(step, pool, like);
  if (options_.normalize) vectors = normalized(vectors);
  return vectors.to(at::kCPU, at::kFloat);
}

at::Tensor Embedder::embed_row(const std::vector<std::vector<int64_t>>& texts, size_t first) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> ids, lengths;
  for (size_t i = first; i < texts.size(); ++i) {
    check(texts[i]);
    const auto length = static_cast<int64_t>(texts[i].size());
    if (i > first && static_cast<int64_t>(ids.size()) + length > options_.tokens_at_once) break;
    ids.insert(ids.end(), texts[i].begin(), texts[i].end());
    lengths.push_back(length);
  }
  return lengths.empty() ? at::empty({0, model_.model().shape.hidden}, at::kFloat) : run(ids, lengths);
}

at::Tensor Embedder::embed(const std::vector<std::vector<int64_t>>& texts) {
  for (const auto& text : texts) check(text);
  std::vector<at::Tensor> parts{at::empty({0, model_.model().shape.hidden}, at::kFloat)};
  for (size_t next = 0; next < texts.size(); next += static_cast<size_t>(parts.back().size(0)))
    parts.push_back(embed_row(texts, next));
  return at::cat(parts);
}

}  // namespace colossal::infer
