#include "colossal/align/rollouts/rollout_engine.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>
#include <variant>

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
  for (const RolloutGroup& group : groups) {
    for (const RolloutAnswer& answer : group.answers) ask(number, step, group, answer);
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
  for (size_t rank = 0; rank < all.size(); ++rank)
    for (RolloutRecord& record : records_of(all[rank])) {
      RolloutAnswer& answer = std::get<AnswerRecord>(record).answer;
      RolloutGroup& group = group_of(groups, answer.prompt);
      if (static_cast<int64_t>(rank) != replica) ask(number, step, group, answer);
      group.answers.push_back(std::move(answer));
    }
  sort_answers(groups, run_.answers);
  step.groups.insert(step.groups.end(), std::make_move_iterator(groups.begin()), std::make_move_iterator(groups.end()));
}

void RolloutEngine::restore(int64_t number, std::vector<RolloutGroup> groups, const RolloutDigests& digests) {
  Step& step = opened(number, digests);
  for (const RolloutGroup& group : groups) {
    if (step.stored) step.stored->begin(group.prompt);
    for (const RolloutAnswer& answer : group.answers) {
      if (is_first() && !step.stored->answer(answer.prompt, answer.number)) step.stored->add(answer);
      ask(number, step, group, answer);
    }
  }
  step.groups = std::move(groups);
}

/// Gives an answer to the scorer, unless the folder has its score.
void RolloutEngine::ask(int64_t number, Step& step, const RolloutGroup& group, const RolloutAnswer& answer) {
  if (!is_first() || !run_.scorer || step.stored->score(answer.prompt, answer.number)) return;
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

/// Takes the scores that have arrived, of any step. They are stored at once, unless that of a model joins them.
void RolloutEngine::take(double seconds) {
  if (!is_first() || !run_.scorer || run_.scorer->waiting() == 0) return;
  for (Scored& one : run_.scorer->take(seconds)) {
    const AnswerPlace place = place_of(one.id);
    const auto step = steps_.find(place.step);
    if (step == steps_.end()) continue;
    if (!run_.model_scores) step->second.stored->add(RolloutScore{place.prompt, place.number, one.score});
    step->second.arrived.insert_or_assign(one.id, std::move(one.score));
  }
}

void RolloutEngine::wait_for(const Step& step) {
  const auto is_missing = [&](const std::string& id) { return !step.arrived.contains(id); };
  while (std::any_of(step.asked.begin(), step.asked.end(), is_missing)) {
    require(run_.scorer->waiting() > 0, "reward", "the scorer must return a score of each answer: got fewer");
    take(1);
  }
}

/// Returns a score of each answer of the step, and stores those that are new. On rank 0.
std::vector<RolloutRecord> RolloutEngine::scored(int64_t number, Step& step, const std::vector<double>& by_model) {
  std::vector<RolloutRecord> records;
  size_t at = 0;
  for (const RolloutGroup& group : step.groups)
    for (const RolloutAnswer& answer : group.answers) {
      const size_t index = at++;
      RolloutScore score{.prompt = answer.prompt, .number = answer.number};
      if (const Score* stored = step.stored->score(answer.prompt, answer.number)) {
        score.score = *stored;
        records.emplace_back(ScoreRecord{"", "", std::move(score)});
        continue;
      }
      if (run_.scorer) score.score = step.arrived.at(rollout_id(number, answer.prompt, answer.number));
      if (!by_model.empty()) {
        const double own = by_model.at(index);
        require(std::isfinite(own), "reward", "the reward model must give finite scores: got ", own, " for answer ",
                answer.number, " to prompt ", answer.prompt, " of step ", number,
                "; train it again, or check its folder");
        score.score.parts.emplace_back("model", own);
        if (!run_.scorer || score.score.value)
          score.score.value = score.score.value.value_or(0) + run_.model_weight * own;
      }
      records.emplace_back(ScoreRecord{"", "", score});
      step.stored->add(std::move(score));
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
    wait_for(step);
    bytes = bytes_of(scored(number, step, by_model));
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
