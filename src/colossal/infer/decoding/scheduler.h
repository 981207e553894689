// Decides which tokens of which requests the model computes in each step, and assigns the blocks of the KV cache. A
// step combines tokens of running requests with chunks of prompts. Clients take turns in reading prompts.
//
//   Scheduler scheduler({.blocks = 256});
//   scheduler.add(0, prompt, max_new_tokens, {.client = "a"});
//   while (scheduler.has_work()) {
//     const auto step = scheduler.next(); // run it
//     for (const Scheduler::ScheduledTokens& scheduled : step)
//       if (scheduled.wants_next) scheduler.append(scheduled.id, token_of(scheduled));
//   }
//
// Decisions depend neither on a model nor on a clock: ranks that make the same calls decide the same.
// See: Yu et al. 2022 (Orca, OSDI); Agrawal et al. 2023, arXiv:2308.16369 (chunked prompts); Sheng et al. 2024,
// arXiv:2401.00588 (virtual token counters).
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "colossal/infer/decoding/block_pool.h"

namespace colossal::infer {

struct SchedulerOptions {
  int64_t blocks = 256;
  int64_t block_tokens = 64;
  int64_t step_tokens = 512;  ///< maximum number of tokens per step, over all requests
  int64_t max_running = 256;  ///< maximum number of requests that hold blocks; at most step_tokens - chunk_tokens
  /// Tokens of a prompt that a client gets per turn while other clients wait for one; at most half of step_tokens.
  int64_t chunk_tokens = 64;
  bool keeps_prefixes = true;  ///< caches the blocks of prompts and completions for reuse by other requests
  /// Attention window in tokens, including the query's own token. The scheduler returns blocks before the window to the
  /// pool while a request runs. 0 = no window.
  int64_t window = 0;
};

/// How a request of a Scheduler takes turns and shares blocks; the last three are those of infer::Request.
struct Sharing {
  /// Tokens [first_scored, first_scored + scored) are scored: the next token of each gets a log-probability.
  int64_t first_scored = 0, scored = 0;
  bool wants_next = true;  ///< a token is wanted after the last one; false = the request ends when it is read
  /// The hidden states of the scored tokens are wanted, not log-probabilities. The blocks of the request are not cached
  /// for reuse, because they would replace prefixes that chats find again.
  bool is_pooled = false;
  std::string client{}, cache_key{};
  int64_t after = -1;
};

/// Plans steps over the requests of many clients.
///
/// Turns:   each client has a counter of the work done for it: it grows by 1 for each prompt token that is computed and
///          by 2 for each token of a completion. Prompt tokens that are found in cached blocks cost nothing, nor do
///          tokens that are computed again after a preemption. Running completions advance in every step. What is left
///          of the step goes to prompts in chunks of SchedulerOptions::chunk_tokens, each chunk to the client with the
///          smallest counter; of equal ones, to the client that has been active for longer. The requests of a client
///          start in arrival order. With one client, requests are served in arrival order. A smaller step than
///          max_running + chunk_tokens lowers both (options()), so completions never take the last chunk of a step.
/// Idle:    a client without requests is idle. When it returns, its counter is raised to the smallest counter of the
///          active clients, so it cannot save up turns. After all clients were idle, all counters begin again at 0.
/// Room:    a request starts if fewer than max_running requests run and free blocks suffice for its first tokens. If
///          the request whose turn it is finds no room, no other one starts before it (except as under Again). If its
///          client has no running request, the youngest running request of the client with the largest counter is
///          preempted, as often as needed, while that counter is larger. A running request that finds no free block
///          preempts in the same way and may preempt itself. A preempted request returns its blocks and is the next of
///          its client's requests.
/// Again:   a preempted request starts again when free blocks suffice for all its tokens (for a window and a step, if
///          there is a window), and takes these blocks at once. It preempts others only after at least as much work was
///          counted, since the last such start, as it has tokens to read again. Until then requests that are new may
///          start before it, but no other preempted one. So all starts that preempt read at most as many tokens again
///          as are counted for all clients.
/// Latency: a client that returns with the smallest counter gets its first chunk within two steps beside any load of
///          one other client.
class Scheduler {
 public:
  /// Tokens [first, first + count) of a request, the ones after those that its blocks hold.
  struct ScheduledTokens {
    int64_t id, first, count;
    bool is_last;          ///< true if they are the last tokens of the request
    bool wants_next;       ///< is_last and Sharing::wants_next: a token is wanted after them
    int64_t proposed = 0;  ///< number of proposed tokens (propose()) computed after them
    /// Tokens [first_scored, first_scored + scored) of the request: those whose next token gets a log-probability.
    int64_t first_scored = 0, scored = 0;
    bool is_pooled = false;  ///< Sharing::is_pooled
  };
  struct Counts {
    /// Tokens of requests at admission, including each readmission after preemption: all of them, and those found in
    /// cached blocks.
    int64_t prompt_tokens = 0, found_tokens = 0;
    int64_t preempted = 0;
  };

  /// Errors ("engine"): step_tokens, max_running or chunk_tokens is not positive. Errors of BlockPool.
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Adds a request to the end of its client's queue. `max_new_tokens` limits the tokens that append() adds and the
  /// model reads. Each token that Sharing asks to score appears in exactly one ScheduledTokens::scored range, even if
  /// the request is preempted. Until all of them were scored, the request reuses cached blocks only of tokens before
  /// the next one to score. It does not start before a step has read the prompt of Sharing::after; an unknown id,
  /// such as one of a removed request, is ignored.
  /// Errors ("engine"): an id that is in use; no tokens; more tokens, with `max_new_tokens`, than max_length().
  void add(int64_t id, std::vector<int64_t> tokens, int64_t max_new_tokens, const Sharing& sharing = {});
  /// Returns the maximum number of tokens of a request: as many as all blocks hold. If there is a window, and the
  /// blocks hold it and the tokens of a step, there is no limit: INT64_MAX.
  int64_t max_length() const;
  /// Plans a step and returns its tokens in the order in which their requests started. After the step has run, the
  /// blocks of the requests hold these tokens. Cost: the running requests, and the clients once for each chunk.
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

  bool has_work() const { return !sequences_.empty(); }
  /// Returns the number of requests before their first step. running() returns the number of the others, including
  /// preempted ones. Both leave out requests with Sharing::is_pooled.
  int64_t waiting() const { return waiting_; }
  int64_t running() const { return static_cast<int64_t>(sequences_.size()) - waiting_ - pooled_; }
  /// Returns true if a step has read tokens of a request. Errors ("engine"): an unknown id.
  bool has_begun(int64_t id) const { return at(id).found >= 0; }
  /// Returns the number of tokens of a request that were found in cached blocks when it first started; 0 before.
  /// Errors ("engine"): an unknown id.
  int64_t found(int64_t id) const { return std::max<int64_t>(0, at(id).found); }
  /// Returns the counter of a client; 0 for a client without one.
  int64_t counter(const std::string& client) const;
  const std::vector<int64_t>& tokens(int64_t id) const { return at(id).tokens; }
  /// Returns the blocks of a request's held tokens, in order. For a block before the window, which was freed, the entry
  /// is another block's number: no token reads that entry.
  const std::vector<int32_t>& blocks(int64_t id) const { return at(id).blocks; }
  const BlockPool& pool() const { return pool_; }
  const Counts& counts() const { return counts_; }
  /// Returns the options in use: max_running and chunk_tokens may be lower than the constructor's.
  const SchedulerOptions& options() const { return options_; }

 private:
  /// Waiting requests that may start in the rest of a step: all, only those that no step has read, or none.
  enum class Admits { kAll, kNew, kNone };
  struct Client {
    int64_t counter = 0;
    int64_t since = 0;              // number of its return from being idle; decides between equal counters
    int64_t requests = 0;           // number of its requests in sequences_; 0 = idle
    int64_t running = 0;            // number of its requests in running_
    std::deque<int64_t> waiting{};  // its requests that hold no blocks, in the order in which they start
    // During next(): its running requests with a prompt to read, oldest first, and the prompt tokens planned for it.
    std::deque<int64_t> reading{};
    int64_t granted = 0;
  };
  struct Sequence {
    std::vector<int64_t> tokens;
    Client* client;
    std::string cache_key;
    int64_t after;        // id of the request whose prompt is the same; -1 = none
    int64_t prompt;       // number of first tokens that count as the prompt
    int64_t counted = 0;  // number of first tokens that blocks held after some step
    int64_t found = -1;   // number of tokens found when it first started; -1 = it has not started
    int64_t planned = 0;  // during next(): number of tokens of the step
    bool is_running = false;
    std::vector<int32_t> blocks{};
    int64_t held = 0;  // number of tokens that blocks hold, including those of the current step
    std::vector<int64_t> proposed{};
    int64_t given_back = 0;  // number of first blocks that were freed because they are before the window
    int64_t scored = 0;      // first token to score that was not scheduled yet
    int64_t score_end = 0;   // end of the tokens to score
    bool wants_next = true;
    bool is_pooled = false;
    int64_t lacking() const { return static_cast<int64_t>(tokens.size()) - held; }
    // A completion advances by one token in every step. Longer runs of its tokens, read again after a preemption, take
    // turns like a prompt.
    bool is_answering() const { return held >= prompt && lacking() == 1; }
  };
  static bool comes_before(const Client& a, const Client& b);
  Sequence& at(int64_t id);
  const Sequence& at(int64_t id) const;
  Client& activate(const std::string& name);
  void charge(Client& client, int64_t work);
  int64_t min_counter() const;
  void forget_idle_clients();
  bool may_start(const Client& client, Admits admits) const;
  void begin(Sequence& sequence);
  int64_t tokens_at_start(const Sequence& sequence, int64_t max_tokens) const;
  Admits make_room(Client& client, int64_t max_tokens);
  Admits start_first(Client& client, int64_t max_tokens);
  Client* next_reader(Admits admits, int64_t& readers);
  Client* last_running();
  int64_t youngest_of(const Client& client);
  void preempt(int64_t id);
  bool has_blocks_for(Sequence& sequence, int64_t tokens);
  bool plan(Sequence& sequence, int64_t count);
  void plan_completions();
  void plan_prompts();
  std::vector<ScheduledTokens> planned_step();
  void give_up(Sequence& sequence);
  void give_back_behind(Sequence& sequence, int64_t tokens);
  void take_free_blocks(Sequence& sequence, int64_t tokens);
  void take_proposed(ScheduledTokens& scheduled);
  void hold(Sequence& sequence, int64_t count);
  void leave_window(Sequence& sequence);

  SchedulerOptions options_;
  BlockPool pool_;
  std::map<int64_t, Sequence> sequences_;
  std::map<std::string, Client> clients_;
  std::vector<int64_t> running_;  // ids of the requests that hold blocks, in the order in which they started
  int64_t left_ = 0;              // during next(): number of tokens that the step has room for
  int64_t work_ = 0;              // growth of all counters since a preempted request last preempted to start again
  int64_t waiting_ = 0;           // without pooled ones
  int64_t pooled_ = 0;            // number of requests with is_pooled
  int64_t next_since_ = 0;
  Counts counts_;
};

}  // namespace colossal::infer
