#include "colossal/align/rollouts/step_rollouts.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "colossal/base/base64.h"
#include "colossal/base/checksum.h"
#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/run_folder.h"
#include "colossal/comm/agreement.h"
#include "colossal/ops/cpu.h"
#include "colossal/run/data.h"
#include "colossal/text/end_tokens.h"

namespace colossal::align {
namespace {

// Keys of state()
constexpr char kHistory[] = "weights", kSpare[] = "spare_prompts", kPending[] = "pending";

/// Returns a digest of the weights of all models, the same on every rank. Cost: memory speed over the weights.
std::string digest_of_weights(train::Engine& engine) {
  Checksum own;
  tensor::Held held;
  for (const checkpoint::NamedTensor& weight : engine.stored_weights()) {
    weight.value.read_into(held);
    const at::Tensor here = held.value.cpu().contiguous();
    own.update(weight.name.data(), weight.name.size());
    own.update(here.const_data_ptr(), here.nbytes());
  }
  std::string all;
  for (const std::string& digest : comm::all_gather_text(engine.mesh().all(), at::kCPU, own.hex())) all += digest;
  return checksum(all);
}

/// Returns the tokens that end an answer, sorted.
std::vector<int64_t> end_ids_of(const train::StartedRun& run) {
  std::vector<int64_t> ends = run.data.end_ids;
  const std::string folder = text::folder_of_tokenizer(run.config.tokenizer());
  for (const int64_t id : text::end_ids(folder, *run.data.tokenizer)) ends.push_back(id);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace

StepRollouts::StepRollouts(const run::PolicyObjective& objective, const run::Config& config,
                           const run::RewardKeys& reward, const run::ValueKeys& value)
    : objective_(objective),
      reward_(reward),
      seed_(config.training.seed),
      steps_(config.training.steps),
      arithmetic_(concat(config.precision.mode, ", tensor ", config.parallel.tensor.size, ", ",
                         ops::name(ops::instruction_set()))),
      optimizer_(checksum(concat(to_toml(config.optimizer), to_toml(value)))) {}

void StepRollouts::begin(train::Engine& engine, const train::StartedRun& run,
                         const std::function<std::unique_ptr<Scorer>()>& make_scorer,
                         std::function<std::vector<double>(const std::vector<RolloutGroup>&)> model_scores) {
  const run::RolloutKeys& keys = objective_.rollout();
  RolloutRun parts{.answers = keys.answers,
                   .folder = RunFolder(run.config.run.folder).rollouts(),
                   .tokenizer = run.data.tokenizer.get(),
                   .log = &run.log,
                   .model_scores = std::move(model_scores),
                   .model_weight = reward_.from_weight};
  sampler_ = {.max_tokens = keys.max_tokens, .temperature = keys.temperature, .cache_bytes = keys.cache, .seed = seed_};
  comm::agree(engine.mesh().all(), at::kCPU, [&] {
    sampler_.end_ids = end_ids_of(run);
    if (engine.mesh().world().rank() == 0) parts.scorer = make_scorer();
  });
  parts.sampler = sampler_;
  rollouts_ = std::make_unique<RolloutEngine>(engine, std::move(parts));
}

StepRollouts::Drawn StepRollouts::of_step(train::Engine& engine, const NextBatch& next, int64_t step) {
  Stopwatch watch;
  Drawn drawn;
  resume_pending();
  draw_up_to(engine, next, step);
  drawn.draw_seconds = watch.restart();
  drawn.groups = rollouts_->finish(step);
  drawn.score_seconds = watch.restart();
  if (objective_.keys().policy.dynamic == "true") replace_groups(engine, next, step, drawn.groups);
  drawn.draw_seconds += watch.restart();
  return drawn;
}

void StepRollouts::updated(double loss, const train::StepResult& result) {
  weights_ =
      checksum(concat(weights_, " ", std::bit_cast<uint64_t>(loss), " ", std::bit_cast<uint64_t>(result.gradient_norm),
                      " ", std::bit_cast<uint64_t>(result.learning_rate), " ", optimizer_));
}

void StepRollouts::poll() {
  if (rollouts_) rollouts_->poll();
}

void StepRollouts::close(int64_t step) {
  rollouts_->close(step);
  pending_.erase(step);
  if (const int64_t keep = objective_.rollout().keep_steps; keep > 0)
    rollouts_->remove_before(step - (keep - 1) * objective_.keys().policy.updates());
}

nlohmann::json StepRollouts::state() const {
  nlohmann::json spare = nlohmann::json::array(), pending = nlohmann::json::object();
  for (const data::PromptOfBatch& prompt : spare_) spare.push_back({{"ids", prompt.ids}, {"line", prompt.line}});
  for (const auto& [step, one] : pending_) pending[std::to_string(step)] = {{"draws", one.draws}, {"groups", one.text}};
  return {{kHistory, weights_}, {kSpare, std::move(spare)}, {kPending, std::move(pending)}};
}

void StepRollouts::restore(const nlohmann::json& state) {
  weights_ = state.value(kHistory, "");
  const nlohmann::json spare = state.value(kSpare, nlohmann::json::array());
  for (const nlohmann::json& prompt : spare)
    spare_.push_back({prompt.at("ids").get<std::vector<int64_t>>(), prompt.at("line").get<std::string>()});
  const nlohmann::json pending = state.value(kPending, nlohmann::json::object());
  for (const auto& [step, one] : pending.items()) {
    Pending& drawn = pending_[std::stoll(step)];
    drawn = {.draws = one.at("draws").get<std::string>(), .text = one.at("groups").get<std::string>()};
    const std::optional<std::string> bytes = from_base64(drawn.text);
    require(bytes.has_value(), "checkpoint",
            "the rollouts of the checkpoint must be base64: got other text; resume from another checkpoint");
    drawn.groups = groups_of(*bytes);
    check_sizes(drawn.groups, step);
  }
  is_resumed_ = !pending_.empty();
}

/// Requires the answers that a checkpoint has of a step to fill the rows of its updates.
void StepRollouts::check_sizes(const std::vector<RolloutGroup>& groups, const std::string& step) const {
  const run::RolloutKeys& keys = objective_.rollout();
  const auto prompts = static_cast<int64_t>(groups.size());
  const auto answers = static_cast<int64_t>(groups.empty() ? 0 : groups.front().answers.size());
  require(prompts == keys.prompts && answers == keys.answers, "rollout",
          "prompts and answers must be those with which the checkpoint has drawn step ", step, " ahead, ", prompts,
          " and ", answers, ": got ", keys.prompts, " and ", keys.answers, "; restore rollout.prompts and answers");
}

/// Returns the digests of a step. The limits of a command change no score, so a run that continues with more time for
/// it keeps the scores that it has.
RolloutDigests StepRollouts::digests_of(const std::string& draws) const {
  run::RewardKeys keys = reward_;
  const run::RewardKeys any;
  keys.workers = any.workers, keys.timeout = any.timeout, keys.retries = any.retries, keys.on_fault = any.on_fault;
  return {.draws = draws, .scores = checksum(to_toml(keys))};
}

/// Returns the digest of all that draws depend on now.
std::string StepRollouts::draws_now(train::Engine& engine) {
  if (weights_.empty()) weights_ = digest_of_weights(engine);
  return digest_of({{"weights", weights_},
                    {"seed", seed_},
                    {"max_tokens", sampler_.max_tokens},
                    {"temperature", sampler_.temperature},
                    {"end_ids", sampler_.end_ids},
                    {"canonical", objective_.is_canonical()},
                    {"arithmetic", arithmetic_}});
}

std::vector<RolloutPrompt> StepRollouts::take_prompts(const NextBatch& next, int64_t first, int64_t count) {
  std::vector<RolloutPrompt> prompts;
  while (static_cast<int64_t>(prompts.size()) < count) {
    if (spare_.empty())
      for (data::PromptOfBatch& prompt : data::prompts_of(next())) spare_.push_back(std::move(prompt));
    prompts.push_back({.index = first + static_cast<int64_t>(prompts.size()),
                       .ids = std::move(spare_.front().ids),
                       .line = std::move(spare_.front().line)});
    spare_.pop_front();
  }
  return prompts;
}

/// Gives the scorer the answers that an earlier start of the run has drawn ahead.
void StepRollouts::resume_pending() {
  if (!std::exchange(is_resumed_, false)) return;
  for (auto& [step, one] : pending_) rollouts_->restore(step, std::exchange(one.groups, {}), digests_of(one.draws));
}

/// Draws the answers of this step and of those ahead with the weights of now, unless they were drawn before.
void StepRollouts::draw_up_to(train::Engine& engine, const NextBatch& next, int64_t first) {
  const int64_t updates = objective_.keys().policy.updates(), ahead = objective_.rollout().ahead;
  // A step that a changed number of updates moves past the end is drawn, too.
  const int64_t last = std::max(first, std::min(first + ahead * updates, steps_));
  for (int64_t step = first; step <= last; step += updates) {
    if (pending_.contains(step)) continue;
    const std::string draws = draws_now(engine);
    rollouts_->draw(step, take_prompts(next, 0, objective_.rollout().prompts), digests_of(draws));
    // Encoded once, because every step asks for the state.
    pending_[step] = {.draws = draws, .text = step == first ? "" : base64(bytes_of(rollouts_->drawn(step)))};
  }
}

/// Replaces groups whose answers all have one score by those of further prompts (alignment.dynamic).
void StepRollouts::replace_groups(train::Engine& engine, const NextBatch& next, int64_t step,
                                  std::vector<RolloutGroup>& groups) {
  int64_t index = objective_.rollout().prompts;
  const std::string draws = draws_now(engine);
  for (int64_t wave = 0; wave < objective_.keys().policy.max_waves; ++wave) {
    std::vector<RolloutGroup*> dull;
    for (RolloutGroup& group : groups)
      if (!has_spread(values_of(group.scores))) dull.push_back(&group);
    if (dull.empty()) return;
    const auto count = static_cast<int64_t>(dull.size());
    rollouts_->draw(step, take_prompts(next, index, count), digests_of(draws));
    index += count;
    size_t at = 0;
    for (RolloutGroup& group : rollouts_->finish(step))
      if (group.prompt.index >= index - count && has_spread(values_of(group.scores))) *dull[at++] = std::move(group);
  }
}

}  // namespace colossal::align
