#include "colossal/infer/decoding/draft_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::infer {
namespace {

SchedulerOptions scheduling(distributed::DistributedModel& model, const DraftModel::Options& options) {
  const int64_t window = model.decoding_model().shape.window;
  return {.blocks = options.cache.blocks,
          .block_tokens = options.cache.block_tokens * model.cache_ranks(),
          .step_tokens = options.step_tokens,
          .max_running = std::numeric_limits<int64_t>::max(),  // the wishes of write() decide which sequences run
          .keeps_prefixes = false,                             // rejected draft tokens are overwritten in their blocks
          // the next draft starts before the end of the last one
          .window = window > 0 ? window + options.max_draft_tokens : 0};
}

/// Returns logits [V] for a vocabulary of another size. Drops ids beyond it; missing ids get minus infinity.
at::Tensor of_vocabulary(const at::Tensor& logits, int64_t vocabulary) {
  const int64_t own = logits.size(0);
  if (own >= vocabulary) return logits.narrow(0, 0, vocabulary);
  return at::constant_pad_nd(logits, {0, vocabulary - own}, -std::numeric_limits<double>::infinity());
}

/// Adds a token to the draft. Returns false if the draft ends there. An error of the constraint ends the draft too: if
/// the request reaches the same token, the constraint reports the error there.
bool continue_draft(DraftModel::Wish& wish, const at::Tensor& logits, std::vector<DraftedToken>& draft) {
  try {
    draft.push_back(wish.sampler.draft(constrained(logits, wish.constraint.get())));
    const int64_t token = draft.back().token;
    const bool is_end = std::find(wish.end_ids.begin(), wish.end_ids.end(), token) != wish.end_ids.end();
    if (is_end || static_cast<int64_t>(draft.size()) == wish.max_draft_tokens) return false;
    if (wish.constraint) wish.constraint->accept(token);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

DraftModel::DraftModel(distributed::DistributedModel& model, int64_t vocabulary, const Options& options)
    : vocabulary_(vocabulary),
      options_(options),
      scheduler_(scheduling(model, options)),
      runner_(model, options.cache) {}

bool DraftModel::fits(const Wish& wish) const {
  const int64_t vocabulary = runner_.shape().vocabulary;
  const auto length = static_cast<int64_t>(wish.tokens.size());
  const bool is_known =
      std::all_of(wish.tokens.begin(), wish.tokens.end(), [&](int64_t token) { return token < vocabulary; });
  return wish.max_draft_tokens > 0 && is_known && length + wish.max_draft_tokens <= runner_.longest() &&
         scheduler_.pool().blocks_for(length + wish.max_draft_tokens) <= options_.cache.blocks;
}

// Updates the scheduler's copy of the sequence, so that its blocks keep the entries of the unchanged first tokens.
void DraftModel::follow(const Wish& wish) {
  if (known_.insert(wish.id).second) {
    scheduler_.add(wish.id, wish.tokens, wish.max_draft_tokens);
    return;
  }
  const std::vector<int64_t>& own = scheduler_.tokens(wish.id);
  const auto differs = std::mismatch(own.begin(), own.end(), wish.tokens.begin(), wish.tokens.end());
  // The model reads the last token in any case, because its logits give the first draft token.
  const auto same = std::min<int64_t>(differs.first - own.begin(), static_cast<int64_t>(wish.tokens.size()) - 1);
  scheduler_.rewind(wish.id, same);
  for (auto token = wish.tokens.begin() + same; token != wish.tokens.end(); ++token) scheduler_.append(wish.id, *token);
}

void DraftModel::forget(int64_t id) {
  if (known_.erase(id) > 0) scheduler_.remove(id);
}

// Frees blocks of sequences that need no draft now. Removes first those whose blocks were preempted, so that they are
// not computed again. If there are none, removes one that still has blocks. So wishes are served in arrival order.
bool DraftModel::make_room(std::set<int64_t> needed, const std::vector<Scheduler::Run>& step) {
  for (const Scheduler::Run& run : step) needed.insert(run.id);
  std::vector<int64_t> others, without_blocks;
  for (const int64_t id : known_)
    if (needed.count(id) == 0) (scheduler_.blocks(id).empty() ? without_blocks : others).push_back(id);
  if (without_blocks.empty() && !others.empty()) without_blocks.push_back(others.back());
  for (const int64_t id : without_blocks) forget(id);
  return !without_blocks.empty();
}

std::vector<std::vector<DraftedToken>> DraftModel::write(std::vector<Wish> wishes) {
  std::vector<std::vector<DraftedToken>> drafts(wishes.size());
  std::map<int64_t, size_t> places;
  std::set<int64_t> wanted;
  for (size_t i = 0; i < wishes.size(); ++i) {
    if (!fits(wishes[i])) {
      forget(wishes[i].id);
      continue;
    }
    follow(wishes[i]);
    places[wishes[i].id] = i;
    wanted.insert(wishes[i].id);
  }
  while (!wanted.empty()) {
    const int64_t preempted = scheduler_.counts().preempted;
    const std::vector<Scheduler::Run> step = scheduler_.next();
    const bool has_room = !step.empty() && scheduler_.counts().preempted == preempted;
    require(has_room || make_room(wanted, step) || !step.empty(), "engine",
            "the draft model's cache must hold a sequence; raise --kv-cache or lower --max-tokens");
    if (step.empty()) continue;
    const at::Tensor logits = runner_.logits(scheduler_, step);
    int64_t row = 0;
    for (const Scheduler::Run& run : step) {
      if (!run.is_last) continue;
      const at::Tensor own = of_vocabulary(logits[row++], vocabulary_);
      if (wanted.count(run.id) == 0) continue;  // it was preempted and then scheduled again
      Wish& wish = wishes[places.at(run.id)];
      std::vector<DraftedToken>& draft = drafts[places.at(run.id)];
      if (!continue_draft(wish, own, draft)) {
        wanted.erase(run.id);
        continue;
      }
      scheduler_.append(run.id, draft.back().token);
    }
  }
  return drafts;
}

}  // namespace colossal::infer
