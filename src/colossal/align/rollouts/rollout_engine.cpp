#include "colossal/align/rollouts/rollout_engine.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>
#include <variant>

#include "colossal/align/rewards/sum_scorer.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/mesh.h"

namespace colossal::align {
namespace {

/// The numbers in a rollout_id().
struct AnswerPlace {
  int64_t step = 0, prompt = 0, number = 0;
};

AnswerPlace place_of(const std::string& id) {
  AnswerPlace place;
  const char* const end = id.data() + id.size();
  const char* at = std::from_chars(id.data(), end, place.step).ptr;
  at = std::from_chars(std::min(at + 1, end), end, place.prompt).ptr;
  std::from_chars(std::min(at + 1, end), end, place.number);
  return place;
}

RolloutGroup& group_of(std::vector<RolloutGroup>& groups, int64_t prompt) {
  const auto found =
      std::find_if(groups.begin(), groups.end(), [&](const RolloutGroup& one) { return one.prompt.index == prompt; });
  require(found != groups.end(), "rollouts", "an answer must belong to a prompt of its step: got prompt ", prompt);
  return *found;
}

void sort_answers(std::vector<RolloutGroup>& groups, int64_t answers) {
  for (RolloutGroup& group : groups) {
    std::sort(group.answers.begin(), group.answers.end(),
              [](const RolloutAnswer& a, const RolloutAnswer& b) { return a.number < b.number; });
    require(static_cast<int64_t>(group.answers.size()) == answers, "rollouts", "prompt ", group.prompt.index,
            " must have ", answers, " answers: got ", group.answers.size());
  }
}

}  // namespace

RolloutEngine::RolloutEngine(train::Engine& engine, RolloutRun run)
    : engine_(engine),
      run_(std::move(run)),
      sampler_(engine, run_.sampler),
      records_(run_.folder, engine.mesh().world().rank(), *run_.log) {}

RolloutEngine::~RolloutEngine() = default;

bool RolloutEngine::is_first() const { return engine_.mesh().world().rank() == 0; }

/// Of the ranks that draw the same answers, the one at the start of all axes but "data" stores them.
bool RolloutEngine::stores() const {
  const auto& axes = engine_.mesh().coordinates().axes();
  return std::all_of(axes.begin(), axes.end(), [](const auto& axis) { return axis.name == "data" || axis.index == 0; });
}

RolloutEngine::Step& RolloutEngine::opened(int64_t number, const RolloutDigests& digests) {
  Step& step = steps_[number];
  comm::agree(engine_.mesh().all(), at::kCPU, [&] {
    if (stores() && !step.stored) step.stored.emplace(records_.open(number, digests));
  });
  return step;
}

/// Returns the answers that the folder has, as rank 0 has read them: files that other ranks write now must not matter.
std::vector<RolloutGroup> RolloutEngine::found_groups(Step& step, const std::vector<RolloutPrompt>& prompts) {
  std::vector<RolloutGroup> groups;
  for (const RolloutPrompt& prompt : prompts) {
    RolloutGroup& group = groups.emplace_back(RolloutGroup{.prompt = prompt});
    if (step.stored) step.stored->begin(prompt);
    if (!is_first()) continue;
    for (int64_t number = 0; number < run_.answers; ++number)
      if (const RolloutAnswer* answer = step.stored->answer(prompt.index, number)) group.answers.push_back(*answer);
  }
  return groups_of(comm::broadcast_text(engine_.mesh().all(), at::kCPU, 0, is_first() ? bytes_of(groups) : ""));
}

void RolloutEngine::draw(int64_t number, const std::vector<RolloutPrompt>& prompts, const RolloutDigests& digests) {
  Step& step = opened(number, digests);
  std::vector<RolloutGroup> groups = found_groups(step, prompts);
  comm::Mesh& mesh = engine_.mesh();
  const int64_t replicas = mesh.size("data"), replica = mesh.coordinates().index("data");
  std::vector<Draw> draws;
  ask_all(number, step, groups);
  for (const RolloutGroup& group : groups) {
    if (group.prompt.index % replicas != replica) continue;
    for (int64_t which = 0; which < run_.answers; ++which)
      if (std::none_of(group.answers.begin(), group.answers.end(),
                       [&](const RolloutAnswer& one) { return one.number == which; }))
        draws.push_back({&group.prompt, which});
  }
  std::vector<RolloutRecord> drawn;
  sampler_.draw(
      number, draws,
      [&](RolloutAnswer answer) {
        if (step.stored) step.stored->add(answer);
        ask(number, step, group_of(groups, answer.prompt), answer);
        drawn.emplace_back(AnswerRecord{"", std::move(answer)});
      },
      [&] { take(0); });
  const std::vector<std::string> all = comm::all_gather_text(mesh.group("data"), at::kCPU, bytes_of(drawn));
  comm::agree(mesh.all(), at::kCPU, [&] {
    for (size_t rank = 0; rank < all.size(); ++rank)
      for (RolloutRecord& record : records_of(all[rank])) {
        RolloutAnswer& answer = std::get<AnswerRecord>(record).answer;
        RolloutGroup& group = group_of(groups, answer.prompt);
        if (static_cast<int64_t>(rank) != replica) ask(number, step, group, answer);
        group.answers.push_back(std::move(answer));
      }
  });
  sort_answers(groups, run_.answers);
  step.groups.insert(step.groups.end(), std::make_move_iterator(groups.begin()), std::make_move_iterator(groups.end()));
}

void RolloutEngine::restore(int64_t number, std::vector<RolloutGroup> groups, const RolloutDigests& digests) {
  Step& step = opened(number, digests);
  comm::agree(engine_.mesh().all(), at::kCPU, [&] {
    for (const RolloutGroup& group : groups) {
      if (step.stored) step.stored->begin(group.prompt);
      for (const RolloutAnswer& answer : group.answers)
        if (is_first() && !step.stored->answer(answer.prompt, answer.number)) step.stored->add(answer);
    }
  });
  ask_all(number, step, groups);
  step.groups = std::move(groups);
}

/// Gives answers that every rank has to the scorer.
void RolloutEngine::ask_all(int64_t number, Step& step, const std::vector<RolloutGroup>& groups) {
  comm::agree(engine_.mesh().all(), at::kCPU, [&] {
    for (const RolloutGroup& group : groups)
      for (const RolloutAnswer& answer : group.answers) ask(number, step, group, answer);
  });
}

/// Gives an answer to the scorer, unless the folder has its score.
void RolloutEngine::ask(int64_t number, Step& step, const RolloutGroup& group, const RolloutAnswer& answer) {
  if (!is_first() || !run_.scorer || fault_ || step.stored->score(answer.prompt, answer.number)) return;
  const std::string id = rollout_id(number, answer.prompt, answer.number);
  const std::string where = concat("prompt ", answer.prompt, " of step ", number);
  auto line =
      std::make_shared<text::PromptLine>(text::PromptLine{parse_json(group.prompt.line, where, "rollouts"), where});
  run_.scorer->add({.id = id,
                    .line = std::move(line),
                    .completion = {run_.tokenizer->decode(answer.ids), static_cast<int64_t>(answer.ids.size())},
                    .where = step.stored->path()});
  step.asked.push_back(id);
}

/// Takes the scores that have arrived, of any step, and stores those that are complete. finish() throws the error of
/// the scorer, when scores that wait for that of a model are stored, too.
void RolloutEngine::take(double seconds) {
  if (!is_first() || !run_.scorer || fault_ || run_.scorer->waiting() == 0) return;
  std::vector<Scored> scored;
  try {
    scored = run_.scorer->take(seconds);
  } catch (const Error& error) {
    fault_ = error;
  }
  for (Scored& one : scored) {
    const AnswerPlace place = place_of(one.id);
    const auto step = steps_.find(place.step);
    if (step == steps_.end()) continue;
    step->second.arrived.insert_or_assign(one.id, std::move(one.score));
    keep(place.step, step->second, place.prompt, place.number);
  }
}

/// Stores the score of an answer if all its parts are known.
void RolloutEngine::keep(int64_t number, Step& step, int64_t prompt, int64_t answer) {
  if (step.stored->score(prompt, answer)) return;
  RolloutScore score{.prompt = prompt, .number = answer};
  if (run_.scorer) {
    const auto arrived = step.arrived.find(rollout_id(number, prompt, answer));
    if (arrived == step.arrived.end()) return;
    score.score = arrived->second;
  }
  if (run_.model_scores) {
    const auto own = step.by_model.find({prompt, answer});
    if (own == step.by_model.end()) return;
    Score& sum = score.score;
    const auto others = std::exchange(sum.parts, {{"model", own->second}});
    for (const auto& [name, value] : others) add_part(sum.parts, name, "other", value);
    if (!run_.scorer || sum.value) sum.value = sum.value.value_or(0) + run_.model_weight * own->second;
  }
  step.stored->add(std::move(score));
}

/// Names the model's scores of a step's answers, and stores those that wait for nothing else.
void RolloutEngine::set_by_model(int64_t number, Step& step, const std::vector<double>& scores) {
  size_t at = 0;
  for (const RolloutGroup& group : step.groups)
    for (const RolloutAnswer& answer : group.answers) {
      const double own = scores.at(at++);
      require(std::isfinite(own) || step.stored->score(answer.prompt, answer.number), "reward",
              "the reward model must give finite scores: got ", own, " for answer ", answer.number, " to prompt ",
              answer.prompt, " of step ", number, "; train it again, or check its folder");
      step.by_model[{answer.prompt, answer.number}] = own;
    }
  for (const auto& [place, own] : step.by_model) keep(number, step, place.first, place.second);
}

void RolloutEngine::wait_for(const Step& step) {
  const auto is_missing = [&](const std::string& id) { return !step.arrived.contains(id); };
  while (fault_ || std::any_of(step.asked.begin(), step.asked.end(), is_missing)) {
    if (fault_) throw Error(*std::exchange(fault_, std::nullopt));
    require(run_.scorer->waiting() > 0, "reward", "the scorer must return a score of each answer: got fewer");
    take(1);
  }
}

/// Returns the stored score of each answer of the step. On rank 0.
std::vector<RolloutRecord> RolloutEngine::scores_of_step(const Step& step) {
  std::vector<RolloutRecord> records;
  for (const RolloutGroup& group : step.groups)
    for (const RolloutAnswer& answer : group.answers) {
      const Score* stored = step.stored->score(answer.prompt, answer.number);
      require(stored != nullptr, "reward", "each answer must have a score: got none for answer ", answer.number,
              " to prompt ", answer.prompt);
      records.emplace_back(ScoreRecord{"", "", {answer.prompt, answer.number, *stored}});
    }
  return records;
}

std::vector<RolloutGroup> RolloutEngine::finish(int64_t number) {
  Step& step = steps_.at(number);
  std::vector<double> by_model;
  if (run_.model_scores) by_model = run_.model_scores(step.groups);
  comm::World& world = engine_.mesh().world();
  std::string bytes;
  comm::agree(engine_.mesh().all(), at::kCPU, [&] {
    if (!is_first()) return;
    const auto busy = world.busy("waiting for the scores of answers");
    if (run_.model_scores) set_by_model(number, step, by_model);
    wait_for(step);
    bytes = bytes_of(scores_of_step(step));
  });
  for (RolloutGroup& group : step.groups) group.scores.clear();  // further prompts may have joined them since
  for (const RolloutRecord& record : records_of(comm::broadcast_text(engine_.mesh().all(), at::kCPU, 0, bytes))) {
    const RolloutScore& score = std::get<ScoreRecord>(record).score;
    group_of(step.groups, score.prompt).scores.push_back(score.score);
  }
  return step.groups;
}

void RolloutEngine::remove_before(int64_t step) const {
  if (is_first()) records_.remove_before(step);
}

}  // namespace colossal::align
