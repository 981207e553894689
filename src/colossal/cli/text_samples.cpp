#include "colossal/cli/text_samples.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "colossal/infer/generate.h"
#include "colossal/train/trainer.h"

namespace colossal::cli {
namespace {

std::vector<run::Sample> text_samples(train::Trainer& trainer, const run::ShowText& show) {
  const run::Config& config = trainer.config();
  const models::Model& model = trainer.engine().model();
  if (config.training.sample_tokens == 0 || !trainer.tokenizer() || !model.shape.task().generates() || !model.head)
    return {};
  const text::Tokenizer& tokenizer = *trainer.tokenizer();
  std::vector<int64_t> prompt = tokenizer.encode_prompt(config.training.sample_prompt);
  if (prompt.empty()) prompt.push_back(tokenizer.end_id() >= 0 ? tokenizer.end_id() : 0);
  // Training steps never saw tokens after these positions.
  const int64_t trained = config.data.sequence - static_cast<int64_t>(prompt.size());
  infer::Request request{.prompt = prompt, .prompt_end = tokenizer.end_id()};
  request.options = {.max_tokens = std::clamp<int64_t>(trained, 0, config.training.sample_tokens),
                     .sampling = {.temperature = 0.6, .top_k = 40, .seed = config.training.seed}};
  if (tokenizer.end_id() >= 0) request.end_ids.push_back(tokenizer.end_id());
  text::TextStream stream(tokenizer);
  run::Sample sample{.title = config.training.sample_prompt};
  const auto take = [&](const std::string& piece) {
    sample.text += piece;
    if (show) show(piece);
  };
  if (show) show(config.training.sample_prompt + (model.shape.task().answers() ? "\n" : ""));
  infer::generate(trainer.engine().distributed(), std::move(request), [&](int64_t id) {
    take(stream.push(id));
    return true;
  });
  take(stream.finish());
  return {std::move(sample)};
}

}  // namespace

run::Program with_text_samples(run::Program program) {
  for (const run::ObjectiveRow& row : program.objectives.rows())
    if (!row.samples) program.objectives.at(row.name).samples = text_samples;
  return program;
}

}  // namespace colossal::cli
