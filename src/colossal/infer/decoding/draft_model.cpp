#include "colossal/infer/decoding/draft_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/shape_parts.h"

namespace colossal::infer {
namespace {

SchedulerOptions scheduling(distributed::DistributedModel& model, const DraftModel::Options& options) {
  const int64_t window = model.decoding_model().shape.part<models::SlidingWindow>().tokens;
  return {.blocks = options.cache.blocks,
          .block_tokens = options.cache.block_tokens * model.cache_ranks(),
          .step_tokens = options.step_tokens,
          .max_running = std::numeric_limits<int64_t>::max(),  // the requests of write() decide which sequences run
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
bool continue_draft(DraftModel::DraftRequest& request, const at::Tensor& logits, std::vector<DraftedToken>& draft) {
  try {
    draft.push_back(request.sampler.draft(constrained(logits, request.constraint.get())));
    const int64_t token = draft.back().token;
    const bool is_end = std::find(request.end_ids.begin(), request.end_ids.end(), token) != request.end_ids.end();
    if (is_end || static_cast<int64_t>(draft.size()) == request.max_draft_tokens) return false;
    if (request.constraint) request.constraint->accept(token);
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
      runner_(model, options.cache) {
  require(!runner_.remembers_tokens(), "engine",
          "a draft model must have no layers that read the tokens before each token: got a ",
          runner_.shape().architecture->name, "; leave out the draft model");
}

bool DraftModel::fits(const DraftRequest& request) const {
  const int64_t vocabulary = runner_.shape().vocabulary;
  const auto length = static_cast<int64_t>(request.tokens.size());
  const bool is_known =
      std::all_of(request.tokens.begin(), request.tokens.end(), [&](int64_t token) { return token < vocabulary; });
  return request.max_draft_tokens > 0 && is_known && length + request.max_draft_tokens <= runner_.even_longest() &&
         scheduler_.pool().blocks_for(length + request.max_draft_tokens) <= options_.cache.blocks;
}

// Updates the scheduler's copy of the sequence, so that its blocks keep the entries of the unchanged first tokens.
void DraftModel::follow(const DraftRequest& request) {
  if (known_.insert(request.id).second) {
    scheduler_.add(request.id, request.tokens, request.max_draft_tokens);
    return;
  }
  const std::vector<int64_t>& own = scheduler_.tokens(request.id);
  const auto differs = std::mismatch(own.begin(), own.end(), request.tokens.begin(), request.tokens.end());
  // The model reads the last token in any case, because its logits give the first draft token.
  const auto same = std::min<int64_t>(differs.first - own.begin(), static_cast<int64_t>(request.tokens.size()) - 1);
  scheduler_.rewind(request.id, same);
  for (auto token = request.tokens.begin() + same; token != request.tokens.end(); ++token)
    scheduler_.append(request.id, *token);
}

void DraftModel::forget(int64_t id) {
  if (known_.erase(id) > 0) scheduler_.remove(id);
}

// Frees blocks of sequences that need no draft now. Removes first those whose blocks were preempted, so that they are
// not computed again. If there are none, removes one that still has blocks. So requests are served in arrival order.
bool DraftModel::make_room(std::set<int64_t> needed, const std::vector<Scheduler::ScheduledTokens>& step) {
  for (const Scheduler::ScheduledTokens& scheduled : step) needed.insert(scheduled.id);
  std::vector<int64_t> others, without_blocks;
  for (const int64_t id : known_)
    if (needed.count(id) == 0) (scheduler_.blocks(id).empty() ? without_blocks : others).push_back(id);
  if (without_blocks.empty() && !others.empty()) without_blocks.push_back(others.back());
  for (const int64_t id : without_blocks) forget(id);
  return !without_blocks.empty();
}

std::vector<std::vector<DraftedToken>> DraftModel::write(std::vector<DraftRequest> requests) {
  std::vector<std::vector<DraftedToken>> drafts(requests.size());
  std::map<int64_t, size_t> places;
  std::set<int64_t> wanted;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!fits(requests[i])) {
      forget(requests[i].id);
      continue;
    }
    follow(requests[i]);
    places[requests[i].id] = i;
    wanted.insert(requests[i].id);
  }
  while (!wanted.empty()) {
    const int64_t preempted = scheduler_.counts().preempted;
    const std::vector<Scheduler::ScheduledTokens> step = scheduler_.next();
    const bool has_room = !step.empty() && scheduler_.counts().preempted == preempted;
    require(has_room || make_room(wanted, step) || !step.empty(), "engine",
            "the draft model's cache must hold a sequence; raise --kv-cache or lower --max-tokens");
    if (step.empty()) continue;
    const at::Tensor logits = runner_.logits(scheduler_, step);
    int64_t row = 0;
    for (const Scheduler::ScheduledTokens& scheduled : step) {
      if (!scheduled.is_last) continue;
      const at::Tensor own = of_vocabulary(logits[row++], vocabulary_);
      if (wanted.count(scheduled.id) == 0) continue;  // it was preempted and then scheduled again
      DraftRequest& request = requests[places.at(scheduled.id)];
      std::vector<DraftedToken>& draft = drafts[places.at(scheduled.id)];
      if (!continue_draft(request, own, draft)) {
        wanted.erase(scheduled.id);
        continue;
      }
      scheduler_.append(scheduled.id, draft.back().token);
    }
  }
  return drafts;
}

}  // namespace colossal::infer
