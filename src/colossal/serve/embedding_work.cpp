#include "colossal/serve/embedding_work.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::serve {

void check_text(const infer::Embedder& embedder, const infer::Engine* engine, const std::vector<int64_t>& text) {
  embedder.check(text);
  const int64_t longest = engine ? engine->max_length() : embedder.options().tokens_at_once;
  require(static_cast<int64_t>(text.size()) <= longest, "embed", "a text must have at most ", longest, " tokens, ",
          engine ? "as positions and cache allow" : "those of a step, because the model sees a whole text at once",
          ": got ", text.size(), "; shorten it, or raise ", engine ? "--kv-cache" : "--step-tokens");
}

EmbeddingWork::EmbeddingWork(infer::Engine* engine, infer::Embedder* embedder, std::function<bool(Ticket)> is_cancelled)
    : engine_(engine), embedder_(embedder), is_cancelled_(std::move(is_cancelled)) {}

void EmbeddingWork::add(NewEmbedding added) {
  require(embedder_, "serve", "the model must embed texts: got one that does not");
  for (const std::vector<int64_t>& text : added.embedding.texts) check_text(*embedder_, engine_, text);
  Embedded& embedded = embeddings_.emplace_back(Embedded{added.ticket, std::move(added.embedding)});
  if (embedded.embedding.on_vectors) embedded.vectors.rows.resize(embedded.embedding.texts.size());
  if (embedded.embedding.texts.empty()) finish(std::prev(embeddings_.end()));
}

void EmbeddingWork::cancel(Ticket ticket) {
  const auto found = std::find_if(embeddings_.begin(), embeddings_.end(),
                                  [ticket](const Embedded& embedded) { return embedded.ticket == ticket; });
  if (found != embeddings_.end()) drop(found);
}

void EmbeddingWork::drop(Place place) {
  for (const auto& [id, index] : place->reading) engine_->drop(id);
  embeddings_.erase(place);
}

// One text always has room. More of them fill the engine's steps.
bool EmbeddingWork::has_room(const Embedded& embedded) const {
  if (embedded.given == embedded.embedding.texts.size()) return false;
  const auto tokens = static_cast<int64_t>(embedded.embedding.texts[embedded.given].size());
  return embedded.reading.empty() || embedded.reading_tokens + tokens <= embedder_->options().tokens_at_once;
}

void EmbeddingWork::give_next(Place place) {
  const size_t index = place->given++;
  const std::vector<int64_t>& text = place->embedding.texts[index];
  const infer::EmbedOptions& options = embedder_->options();
  place->reading_tokens += static_cast<int64_t>(text.size());
  const int64_t id = engine_->add(
      {.prompt = text, .client = place->embedding.client, .pooling = options.pooling, .normalizes = options.normalize},
      [this, place](const infer::Event& event) { hear(place, event); });
  place->reading.emplace(id, index);
}

void EmbeddingWork::begin_step() {
  if (!engine_) {
    if (has_work()) embed_row();
    return;
  }
  for (Place place = embeddings_.begin(); place != embeddings_.end(); ++place)
    while (has_room(*place)) give_next(place);
}

void EmbeddingWork::hear(Place place, const infer::Event& event) {
  const size_t index = place->reading.extract(event.id).mapped();
  place->reading_tokens -= static_cast<int64_t>(place->embedding.texts[index].size());
  place->has_begun = true;
  if (!place->vectors.rows.empty()) place->vectors.rows[index] = event.vector;
  if (place->reading.empty() && place->given == place->embedding.texts.size()) finish(place);
}

void EmbeddingWork::embed_row() {
  const auto first = embeddings_.begin();
  const at::Tensor rows = embedder_->embed_row(first->embedding.texts, first->given).contiguous();
  const auto count = static_cast<size_t>(rows.size(0)), size = static_cast<size_t>(rows.size(1));
  const float* values = rows.const_data_ptr<float>();
  if (!first->vectors.rows.empty())
    for (size_t i = 0; i < count; ++i)
      first->vectors.rows[first->given + i].assign(values + i * size, values + (i + 1) * size);
  first->given += count;
  first->has_begun = true;
  if (first->given == first->embedding.texts.size()) return finish(first);
  embeddings_.splice(embeddings_.end(), embeddings_, first);
}

// The function may call the replica, but not this object.
void EmbeddingWork::finish(Place place) {
  const auto node = std::move(*place);
  embeddings_.erase(place);
  if (node.embedding.on_vectors && !is_cancelled_(node.ticket)) node.embedding.on_vectors(node.vectors);
}

void EmbeddingWork::count(ReplicaLoad& load) const {
  for (const Embedded& embedded : embeddings_) {
    if (!embedded.has_begun && !embedded.reading.empty())
      embedded.has_begun = engine_->has_begun(embedded.reading.begin()->first);
    ++(embedded.has_begun ? load.running : load.waiting);
  }
}

void EmbeddingWork::drop_all() {
  while (has_work()) drop(embeddings_.begin());
}

void EmbeddingWork::fail_all(const std::string& message) {
  for (const Embedded& embedded : std::exchange(embeddings_, {}))
    if (embedded.embedding.on_vectors && !is_cancelled_(embedded.ticket))
      embedded.embedding.on_vectors({.error = message, .engine_has_ended = true});
}

}  // namespace colossal::serve
