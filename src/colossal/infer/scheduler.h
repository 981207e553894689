// Which tokens of which requests go through the model next, and who has which blocks of the cache: iteration by
// iteration, prompts in chunks beside tokens of others, first come first served.
//
//   Scheduler scheduler({.blocks = 256});
//   scheduler.add(0, prompt);
//   while (scheduler.has_work()) {
//     const auto step = scheduler.next();            // run it
//     for (const Scheduler::Run& run : step)
//       if (run.is_last) scheduler.append(run.id, token_of(run));
//   }
//
// It knows no model and looks at no clock: ranks that are told the same decide the same.
// See: Yu et al. 2022 (Orca, OSDI); Agrawal et al. 2023, arXiv:2308.16369 (chunked prompts).
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "colossal/infer/block_pool.h"

namespace colossal::infer {

struct SchedulerOptions {
  int64_t blocks = 256;
  int64_t block_tokens = 64;
  int64_t step_tokens = 512;   ///< of all requests in a step, at most
  int64_t most_running = 256;  ///< requests that have blocks at a time
  bool keeps_prefixes = true;  ///< blocks of prompts and texts are found again
  /// Tokens that are looked at, the one that looks among them: blocks before them are given back while a request runs;
  /// 0: all
  int64_t window = 0;
};

class Scheduler {
 public:
  /// Tokens [first, first + count) of a request, behind those that its blocks hold.
  struct Run {
    int64_t id, first, count;
    bool is_last;          ///< with them all of its tokens were seen: what follows is wanted
    int64_t proposed = 0;  ///< of what propose() was told, those that are run behind them
    /// Tokens [first_scored, first_scored + scored) of them are those whose next token's probability is wanted.
    int64_t first_scored = 0, scored = 0;
  };
  struct Counts {
    int64_t prompt_tokens = 0, found_tokens = 0;  ///< of requests when they began, again too: all, and those in blocks
    int64_t preempted = 0;
  };

  /// Errors ("engine"): a step without tokens, nobody running; those of BlockPool.
  explicit Scheduler(const SchedulerOptions& options);

  /// Errors ("engine"): an id that is there; no tokens; more tokens, with `most_new`, than all blocks hold, or with a
  ///                    window more than they hold of it and of a step.
  /// The first `scored` tokens of the request each appear once in Run::scored, even if it is preempted. Until then it
  /// reuses no cached prefix.
  void add(int64_t id, std::vector<int64_t> tokens, int64_t most_new, int64_t scored = 0);
  /// The runs of a step, whose blocks hold their tokens once it has run: of requests that run, by age, then of new
  /// ones. So whoever continues has its token, and what is left of the step takes in the prompt that came last. Where
  /// blocks lack, the youngest gives up its own and begins again later, before those that wait.
  std::vector<Run> next();
  /// Tokens that may follow all of a request's. They are run with its last one in the next step that this is in, as far
  /// as that step and the pool have room which nobody else wants. Errors ("engine"): an unknown id.
  void propose(int64_t id, std::vector<int64_t> tokens);
  const std::vector<int64_t>& proposed(int64_t id) const { return at(id).proposed; }
  /// After append(): of the tokens proposed so many were what was appended, so blocks hold them. The others are
  /// forgotten. Errors ("engine"): an unknown id.
  void accept(int64_t id, int64_t count);
  /// A token that follows all of a request's. Errors ("engine"): an unknown id.
  void append(int64_t id, int64_t token);
  /// The tokens of a request from `count` on are no more, nor what blocks hold of them; for requests without prefixes
  /// that others find (SchedulerOptions::keeps_prefixes). With a window at most as many tokens may go as it is wider
  /// than what tokens look at. Errors ("engine"): an unknown id, more tokens than there are.
  void rewind(int64_t id, int64_t count);
  /// Tokens [first, first + count) of a request are no more: those behind them move up and are read again. What was
  /// proposed is forgotten. Errors ("engine"): an unknown id, tokens that are not there.
  void cut(int64_t id, int64_t first, int64_t count);
  /// The request is no more. Errors ("engine"): an unknown id.
  void remove(int64_t id);

  bool has_work() const { return !waiting_.empty() || !running_.empty(); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const std::vector<int64_t>& tokens(int64_t id) const { return at(id).tokens; }
  /// The blocks of all tokens of a request that are held, in order. A block before the window was given back: its entry
  /// names some other block, because no token reads it any more.
  const std::vector<int32_t>& blocks(int64_t id) const { return at(id).blocks; }
  const BlockPool& pool() const { return pool_; }
  const Counts& counts() const { return counts_; }

 private:
  struct Sequence {
    std::vector<int64_t> tokens;
    std::vector<int32_t> blocks{};
    int64_t held = 0;  // tokens that blocks hold, those of the step under way among them
    std::vector<int64_t> proposed{};
    int64_t given_back = 0;  // the first blocks, before the window
    int64_t to_score = 0;    // the first tokens
    int64_t scored = 0;      // those of to_score that were in a run
    int64_t lacking() const { return static_cast<int64_t>(tokens.size()) - held; }
  };
  Sequence& at(int64_t id);
  const Sequence& at(int64_t id) const;
  void begin(Sequence& sequence);
  bool has_blocks_for(int64_t id, int64_t tokens, const std::vector<Run>& step);
  void give_up(Sequence& sequence);
  void give_back_behind(Sequence& sequence, int64_t tokens);
  void take_run(int64_t id, std::vector<Run>& step, int64_t& left);
  void take_proposed(Run& run, int64_t& left);
  void hold(Sequence& sequence, int64_t count);
  void leave_window(Sequence& sequence);

  SchedulerOptions options_;
  BlockPool pool_;
  std::map<int64_t, Sequence> sequences_;
  std::deque<int64_t> waiting_;
  std::vector<int64_t> running_;  // by age
  Counts counts_;
};

}  // namespace colossal::infer
