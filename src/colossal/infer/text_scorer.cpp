#include "colossal/infer/text_scorer.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/infer/sent_requests.h"
#include "colossal/models/registry.h"

namespace colossal::infer {
namespace {

distributed::DistributedModel& scoring(distributed::DistributedModel& model) {
  const models::ModelShape& shape = model.decoding_model().shape;
  require(shape.outputs() == 1, "score", "scores need a model with one output for each text: got a ",
          shape.architecture->name, ", which ", shape.task().purpose());
  require(!model.divides_states(), "score",
          "scores need ranks that hold whole hidden states: got a layout that divides them; use "
          "parallel.tensor.mode = \"1d\" without parallel.sequence and parallel.tensor.sequence");
  return model;
}

Request request_of(const std::vector<int64_t>& text) { return {.prompt = text, .pooling = Pooling::Last}; }

}  // namespace

TextScorer::TextScorer(distributed::DistributedModel& model, const EngineOptions& options)
    : engine_(scoring(model), options) {}

void TextScorer::check(const std::vector<int64_t>& text) const { engine_.check(request_of(text)); }

std::vector<float> TextScorer::score(const std::vector<std::vector<int64_t>>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    try {
      check(texts[i]);
    } catch (const Error& error) {
      throw Error("score", concat("text ", i, ": ", error.message()));
    }
  }
  std::vector<float> scores(texts.size());
  size_t ended = 0;
  SentRequests sent(engine_);
  for (size_t i = 0; i < texts.size(); ++i)
    sent.send(request_of(texts[i]), -1, [&scores, &ended, i](const Event& event) {
      require(event.finish_reason == FinishReason::AtLength, "score", "text ", i, " was not scored: ", event.error);
      scores[i] = event.vector.at(0);
      ++ended;
    });
  while (ended < texts.size()) engine_.step();
  return scores;
}

}  // namespace colossal::infer
