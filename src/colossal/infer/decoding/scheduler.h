// Decides which tokens of which requests the model computes in each step, and assigns the blocks of the KV cache. A
// step combines chunks of prompts with tokens of running requests. Requests are served in arrival order.
//
//   Scheduler scheduler({.blocks = 256});
//   scheduler.add(0, prompt);
//   while (scheduler.has_work()) {
//     const auto step = scheduler.next(); // run it
//     for (const Scheduler::ScheduledTokens& scheduled : step)
//       if (scheduled.is_last) scheduler.append(scheduled.id, token_of(scheduled));
//   }
//
// Decisions depend neither on a model nor on a clock: ranks that make the same calls decide the same.
// See: Yu et al. 2022 (Orca, OSDI); Agrawal et al. 2023, arXiv:2308.16369 (chunked prompts).
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "colossal/infer/decoding/block_pool.h"

namespace colossal::infer {

struct SchedulerOptions {
  int64_t blocks = 256;
  int64_t block_tokens = 64;
  int64_t step_tokens = 512;   ///< maximum number of tokens per step, over all requests
  int64_t max_running = 256;   ///< maximum number of requests that hold blocks
  bool keeps_prefixes = true;  ///< caches the blocks of prompts and completions for reuse by other requests
  /// Attention window in tokens, including the query's own token. The scheduler returns blocks before the window to the
  /// pool while a request runs. 0 = no window.
  int64_t window = 0;
};

class Scheduler {
 public:
  /// Tokens [first, first + count) of a request, the ones after those that its blocks hold.
  struct ScheduledTokens {
    int64_t id, first, count;
    bool is_last;          ///< true if they are the last tokens of the request: the next token is wanted
    int64_t proposed = 0;  ///< number of proposed tokens (propose()) computed after them
    /// Tokens [first_scored, first_scored + scored) of the request: those whose next token gets a log-probability.
    int64_t first_scored = 0, scored = 0;
  };
  struct Counts {
    /// Tokens of requests at admission, including each readmission after preemption: all of them, and those found in
    /// cached blocks.
    int64_t prompt_tokens = 0, found_tokens = 0;
    int64_t preempted = 0;
  };

  /// Errors ("engine"): step_tokens or max_running is not positive. Errors of BlockPool.
  explicit Scheduler(const SchedulerOptions& options);

  /// Adds a request to the end of the queue. `max_new_tokens` limits the tokens that append() adds and the
  /// model reads. Each of the first `scored` tokens appears in exactly one ScheduledTokens::scored range, even if the
  /// request is preempted. The request reuses no cached prefix until all of them were scored.
  /// Errors ("engine"): an id that is in use; no tokens; more tokens, with `max_new_tokens`, than all blocks hold. If
  ///                    there is a window, that last limit applies only if the blocks do not hold the window and the
  ///                    tokens of a step.
  void add(int64_t id, std::vector<int64_t> tokens, int64_t max_new_tokens, int64_t scored = 0);
  /// Plans a step and returns its tokens. After the step has run, the blocks of the requests hold these tokens. Running
  /// requests come first, in admission order, so that each gets its token. The remaining tokens of the step go to
  /// waiting requests. If a running request finds no free block, the scheduler preempts the request admitted last,
  /// which returns its blocks and goes to the front of the queue.
  std::vector<ScheduledTokens> next();
  /// Proposes draft tokens after the last token of a request. The next step that computes that last token computes them
  /// too. They use only free blocks and leftover step budget, so they may be cut short. Errors ("engine"): an unknown
  /// id.
  void propose(int64_t id, std::vector<int64_t> tokens);
  const std::vector<int64_t>& proposed(int64_t id) const { return at(id).proposed; }
  /// Accepts the first `count` proposed tokens, which append() must have added before; blocks hold them from then on.
  /// Discards the other proposed tokens and frees blocks that only they needed. Errors ("engine"): an unknown id.
  void accept(int64_t id, int64_t count);
  /// Takes free blocks until the blocks of a request hold `tokens` tokens, or none is free. Returns the number of
  /// tokens that its blocks hold. release() must return the blocks before the next step, because they hold entries of
  /// tokens that may be computed again. Errors ("engine"): an unknown id.
  int64_t reserve(int64_t id, int64_t tokens);
  /// Frees the blocks of a request after its held tokens. Errors ("engine"): an unknown id.
  void release(int64_t id);
  /// Appends a token to a request. Errors ("engine"): an unknown id.
  void append(int64_t id, int64_t token);
  /// Drops tokens [count, end) of a request and their cache entries. Requires SchedulerOptions::keeps_prefixes = false,
  /// because another request may have found the blocks. If there is a window, the number of dropped tokens must not
  /// exceed SchedulerOptions::window minus the model's own window. Errors ("engine"): an unknown id, more tokens than
  /// the request has, keeps_prefixes = true.
  void rewind(int64_t id, int64_t count);
  /// Removes tokens [first, first + count) of a request. Later tokens move up, and the model reads them again. Discards
  /// proposed tokens. Errors ("engine"): an unknown id; a range that includes the last token or is not inside the
  /// sequence.
  void cut(int64_t id, int64_t first, int64_t count);
  /// Removes a request and frees its blocks. Errors ("engine"): an unknown id.
  void remove(int64_t id);

  bool has_work() const { return !waiting_.empty() || !running_.empty(); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const std::vector<int64_t>& tokens(int64_t id) const { return at(id).tokens; }
  /// Returns the blocks of a request's held tokens, in order. For a block before the window, which was freed, the entry
  /// is another block's number: no token reads that entry.
  const std::vector<int32_t>& blocks(int64_t id) const { return at(id).blocks; }
  const BlockPool& pool() const { return pool_; }
  const Counts& counts() const { return counts_; }

 private:
  struct Sequence {
    std::vector<int64_t> tokens;
    std::vector<int32_t> blocks{};
    int64_t held = 0;  // number of tokens that blocks hold, including those of the current step
    std::vector<int64_t> proposed{};
    int64_t given_back = 0;  // number of first blocks that were freed because they are before the window
    int64_t to_score = 0;    // number of first tokens to score
    int64_t scored = 0;      // number of tokens of to_score that were scheduled
    int64_t lacking() const { return static_cast<int64_t>(tokens.size()) - held; }
  };
  Sequence& at(int64_t id);
  const Sequence& at(int64_t id) const;
  void begin(Sequence& sequence);
  bool has_blocks_for(int64_t id, int64_t tokens, const std::vector<ScheduledTokens>& step);
  void give_up(Sequence& sequence);
  void give_back_behind(Sequence& sequence, int64_t tokens);
  void take_tokens(int64_t id, std::vector<ScheduledTokens>& step, int64_t& left);
  void take_free_blocks(Sequence& sequence, int64_t tokens);
  void take_proposed(ScheduledTokens& scheduled, int64_t& left);
  void hold(Sequence& sequence, int64_t count);
  void leave_window(Sequence& sequence);

  SchedulerOptions options_;
  BlockPool pool_;
  std::map<int64_t, Sequence> sequences_;
  std::deque<int64_t> waiting_;
  std::vector<int64_t> running_;  // ids in admission order
  Counts counts_;
};

}  // namespace colossal::infer
