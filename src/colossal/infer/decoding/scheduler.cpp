#include "colossal/infer/decoding/scheduler.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::infer {

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options), pool_(options.blocks, options.block_tokens) {
  require(options.step_tokens > 0 && options.max_running > 0, "engine",
          "step_tokens and max_running must be positive: got ", options.step_tokens, " and ", options.max_running);
}

Scheduler::Sequence& Scheduler::at(int64_t id) {
  const auto found = sequences_.find(id);
  require(found != sequences_.end(), "engine", "unknown request ", id);
  return found->second;
}

const Scheduler::Sequence& Scheduler::at(int64_t id) const { return const_cast<Scheduler*>(this)->at(id); }

void Scheduler::add(int64_t id, std::vector<int64_t> tokens, int64_t max_new_tokens, int64_t scored) {
  require(sequences_.count(id) == 0, "engine", "request ids must differ: got ", id, " twice");
  require(!tokens.empty(), "engine", "a prompt must have at least one token");
  const int64_t needed = static_cast<int64_t>(tokens.size()) + max_new_tokens,
                room = options_.blocks * options_.block_tokens;
  // With a window, a step needs blocks for its own tokens and for the window before them. The window may start anywhere
  // in a block.
  const bool slides = options_.window > 0 && pool_.blocks_for(options_.window + options_.step_tokens) < options_.blocks;
  require(needed <= room || slides, "engine", "prompt + new tokens must fit the KV cache: got ", tokens.size(), " + ",
          max_new_tokens, " tokens, capacity ", room, "; raise --kv-cache or lower --max-tokens");
  sequences_.emplace(id, Sequence{.tokens = std::move(tokens), .to_score = scored});
  waiting_.push_back(id);
}

void Scheduler::begin(Sequence& sequence) {
  if (options_.keeps_prefixes && sequence.scored == sequence.to_score) sequence.blocks = pool_.find(sequence.tokens);
  sequence.held = static_cast<int64_t>(sequence.blocks.size()) * options_.block_tokens;
  leave_window(sequence);
}

// Frees the blocks that no token from `held` on attends to. Their table entries are set to a block that the sequence
// still owns. Because of that, a kernel that loads a page through them reads the sequence's own values.
void Scheduler::leave_window(Sequence& sequence) {
  if (options_.window == 0) return;
  const int64_t before = std::max<int64_t>(0, sequence.held - options_.window + 1) / options_.block_tokens;
  if (before <= sequence.given_back) return;
  for (int64_t i = sequence.given_back; i < before; ++i) pool_.give_back(sequence.blocks[i]);
  sequence.given_back = before;
  const int32_t own = before < static_cast<int64_t>(sequence.blocks.size()) ? sequence.blocks[before] : 0;
  std::fill_n(sequence.blocks.begin(), before, own);
}

void Scheduler::give_up(Sequence& sequence) {
  // Frees the last blocks first, because a cached prefix is useless without its first blocks: the pool should reuse
  // those last.
  while (static_cast<int64_t>(sequence.blocks.size()) > sequence.given_back) {
    pool_.give_back(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
  sequence.blocks.clear();
  sequence.held = sequence.given_back = 0;
  sequence.proposed.clear();
}

void Scheduler::hold(Sequence& sequence, int64_t count) {
  const int64_t full = sequence.held / options_.block_tokens;
  sequence.held += count;
  if (options_.keeps_prefixes && sequence.held / options_.block_tokens > full)
    pool_.keep(sequence.blocks, {sequence.tokens.begin(), sequence.tokens.begin() + sequence.held},
               sequence.given_back);
}

// Gets blocks for `tokens` held tokens. If the pool is empty, preempts the newest running requests that are not in the
// step.
bool Scheduler::has_blocks_for(int64_t id, int64_t tokens, const std::vector<ScheduledTokens>& step) {
  Sequence& sequence = at(id);
  while (static_cast<int64_t>(sequence.blocks.size()) < pool_.blocks_for(tokens)) {
    if (const auto block = pool_.take()) {
      sequence.blocks.push_back(*block);
      continue;
    }
    const int64_t youngest = running_.back();
    const bool is_in_step = std::any_of(step.begin(), step.end(),
                                        [&](const ScheduledTokens& scheduled) { return scheduled.id == youngest; });
    if (is_in_step) return false;
    running_.pop_back();
    give_up(at(youngest));
    waiting_.push_front(youngest);
    ++counts_.preempted;
    if (youngest == id) return false;
  }
  return true;
}

void Scheduler::take_tokens(int64_t id, std::vector<ScheduledTokens>& step, int64_t& left) {
  Sequence& sequence = at(id);
  const int64_t count = std::min(sequence.lacking(), left);
  if (count == 0 || !has_blocks_for(id, sequence.held + count, step)) return;
  ScheduledTokens scheduled{id, sequence.held, count, count == sequence.lacking()};
  scheduled.first_scored = sequence.scored;  // a preempted request computes the tokens before it again
  scheduled.scored = std::max<int64_t>(0, std::min(scheduled.first + count, sequence.to_score) - sequence.scored);
  sequence.scored += scheduled.scored;
  step.push_back(scheduled);
  left -= count;
}

void Scheduler::take_free_blocks(Sequence& sequence, int64_t tokens) {
  while (static_cast<int64_t>(sequence.blocks.size()) < pool_.blocks_for(tokens)) {
    const auto block = pool_.take();
    if (!block) break;
    sequence.blocks.push_back(*block);
  }
}

int64_t Scheduler::reserve(int64_t id, int64_t tokens) {
  Sequence& sequence = at(id);
  take_free_blocks(sequence, tokens);
  return static_cast<int64_t>(sequence.blocks.size()) * options_.block_tokens;
}

void Scheduler::release(int64_t id) {
  Sequence& sequence = at(id);
  give_back_behind(sequence, sequence.held);
}

// Draft tokens use only free blocks and leftover step budget, so they never preempt a request.
void Scheduler::take_proposed(ScheduledTokens& scheduled, int64_t& left) {
  Sequence& sequence = at(scheduled.id);
  if (!scheduled.is_last) return;
  const int64_t wanted = std::min(static_cast<int64_t>(sequence.proposed.size()), left),
                held = scheduled.first + scheduled.count;
  take_free_blocks(sequence, held + wanted);
  const int64_t room = static_cast<int64_t>(sequence.blocks.size()) * options_.block_tokens - held;
  scheduled.proposed = std::min(wanted, room);
  left -= scheduled.proposed;
}

std::vector<Scheduler::ScheduledTokens> Scheduler::next() {
  std::vector<ScheduledTokens> step;
  int64_t left = options_.step_tokens;
  for (const int64_t id : running_) leave_window(at(id));  // the previous step has run
  // Preemption removes requests only from the end, so the indices stay valid.
  for (size_t i = 0; i < running_.size(); ++i) take_tokens(running_[i], step, left);
  // Waiting requests start only if free blocks suffice: they never preempt a running request.
  while (!waiting_.empty() && left > 0 && static_cast<int64_t>(running_.size()) < options_.max_running) {
    const int64_t id = waiting_.front();
    Sequence& sequence = at(id);
    begin(sequence);
    const int64_t count = std::min(sequence.lacking(), left);
    const int64_t wanted = pool_.blocks_for(sequence.held + count) - static_cast<int64_t>(sequence.blocks.size());
    if (wanted > pool_.free()) {
      give_up(sequence);
      break;
    }
    counts_.prompt_tokens += static_cast<int64_t>(sequence.tokens.size());
    counts_.found_tokens += sequence.held;
    waiting_.pop_front();
    running_.push_back(id);
    take_tokens(id, step, left);
  }
  for (ScheduledTokens& scheduled : step) take_proposed(scheduled, left);
  for (const ScheduledTokens& scheduled : step) hold(at(scheduled.id), scheduled.count);
  return step;
}

void Scheduler::propose(int64_t id, std::vector<int64_t> tokens) { at(id).proposed = std::move(tokens); }

void Scheduler::accept(int64_t id, int64_t count) {
  Sequence& sequence = at(id);
  sequence.proposed.clear();
  if (count > 0) hold(sequence, count);
  // Frees the blocks that were taken only for draft tokens.
  give_back_behind(sequence, static_cast<int64_t>(sequence.tokens.size()));
}

void Scheduler::give_back_behind(Sequence& sequence, int64_t tokens) {
  while (static_cast<int64_t>(sequence.blocks.size()) > std::max(pool_.blocks_for(tokens), sequence.given_back)) {
    pool_.give_back(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
}

void Scheduler::append(int64_t id, int64_t token) { at(id).tokens.push_back(token); }

void Scheduler::rewind(int64_t id, int64_t count) {
  Sequence& sequence = at(id);
  require(count >= 0 && count <= static_cast<int64_t>(sequence.tokens.size()), "engine", "tokens to keep of request ",
          id, " must be 0 to ", sequence.tokens.size(), ": got ", count);
  require(!options_.keeps_prefixes, "engine", "tokens cannot be dropped while prefixes are kept for other requests");
  sequence.tokens.resize(static_cast<size_t>(count));
  sequence.held = std::min(sequence.held, count);
  give_back_behind(sequence, sequence.held);
}

void Scheduler::cut(int64_t id, int64_t first, int64_t count) {
  Sequence& sequence = at(id);
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  require(first >= 0 && count >= 0 && first + count < length, "engine", "request ", id, " has ", length,
          " tokens, of which ", count, " from ", first, " on cannot be removed");
  give_up(sequence);
  sequence.tokens.erase(sequence.tokens.begin() + first, sequence.tokens.begin() + first + count);
  if (std::find(running_.begin(), running_.end(), id) != running_.end()) begin(sequence);
}

void Scheduler::remove(int64_t id) {
  give_up(at(id));
  sequences_.erase(id);
  running_.erase(std::remove(running_.begin(), running_.end(), id), running_.end());
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), id), waiting_.end());
}

}  // namespace colossal::infer
