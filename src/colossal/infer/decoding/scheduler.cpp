#include "colossal/infer/decoding/scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::infer {

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options), pool_(options.blocks, options.block_tokens) {
  require(options.step_tokens > 0 && options.max_running > 0 && options.chunk_tokens > 0, "engine",
          "step_tokens, max_running and chunk_tokens must be positive: got ", options.step_tokens, ", ",
          options.max_running, " and ", options.chunk_tokens);
  // A step has room for a token of each running request and for a chunk. Otherwise completions that fill the step would
  // let the prompts of other clients wait for their end.
  options_.chunk_tokens = std::min(options.chunk_tokens, (options.step_tokens + 1) / 2);
  options_.max_running = std::clamp<int64_t>(options.step_tokens - options_.chunk_tokens, 1, options.max_running);
}

Scheduler::Sequence& Scheduler::at(int64_t id) {
  const auto found = sequences_.find(id);
  require(found != sequences_.end(), "engine", "unknown request ", id);
  return found->second;
}

const Scheduler::Sequence& Scheduler::at(int64_t id) const { return const_cast<Scheduler*>(this)->at(id); }

void Scheduler::add(int64_t id, std::vector<int64_t> tokens, int64_t max_new_tokens, const Sharing& sharing) {
  require(sequences_.count(id) == 0, "engine", "request ids must differ: got ", id, " twice");
  require(!tokens.empty(), "engine", "a prompt must have at least one token");
  require(static_cast<int64_t>(tokens.size()) + max_new_tokens <= max_length(), "engine",
          "prompt + new tokens must fit the KV cache: got ", tokens.size(), " + ", max_new_tokens, " tokens, capacity ",
          max_length(), "; raise --kv-cache or lower --max-tokens");
  Client& client = activate(sharing.client);
  const auto prompt = static_cast<int64_t>(tokens.size());
  sequences_.emplace(id, Sequence{.tokens = std::move(tokens),
                                  .client = &client,
                                  .cache_key = sharing.cache_key,
                                  .after = sharing.after,
                                  .prompt = prompt,
                                  .scored = sharing.first_scored,
                                  .score_end = sharing.first_scored + sharing.scored,
                                  .wants_next = sharing.wants_next,
                                  .is_pooled = sharing.is_pooled});
  client.waiting.push_back(id);
  ++client.requests, ++(sharing.is_pooled ? pooled_ : waiting_);
}

int64_t Scheduler::max_length() const {
  // With a window, a step needs blocks for its own tokens and for the window before them. The window may start anywhere
  // in a block.
  const bool slides = options_.window > 0 && pool_.blocks_for(options_.window + options_.step_tokens) < options_.blocks;
  return slides ? std::numeric_limits<int64_t>::max() : options_.blocks * options_.block_tokens;
}

Scheduler::Client& Scheduler::activate(const std::string& name) {
  if (sequences_.empty()) clients_.clear(), work_ = 0;
  Client& client = clients_[name];
  if (client.requests > 0) return client;
  client.counter = std::max(client.counter, min_counter());
  client.since = next_since_++;
  return client;
}

// Returns the smallest counter of the active clients; 0 if there are none.
int64_t Scheduler::min_counter() const {
  std::optional<int64_t> least;
  for (const auto& [name, client] : clients_)
    if (client.requests > 0) least = std::min(least.value_or(client.counter), client.counter);
  return least.value_or(0);
}

// When such a client returns, its counter is raised as that of a new client is.
void Scheduler::forget_idle_clients() {
  const int64_t least = min_counter();
  std::erase_if(clients_,
                [least](const auto& entry) { return entry.second.requests == 0 && entry.second.counter <= least; });
}

void Scheduler::charge(Client& client, int64_t work) {
  client.counter += work;
  work_ += work;
}

int64_t Scheduler::counter(const std::string& client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? 0 : found->second.counter;
}

void Scheduler::begin(Sequence& sequence) {
  if (options_.keeps_prefixes) {
    // find() leaves the last token that it is given to be computed: the next one to score, or the last one of all.
    const std::vector<int64_t>& tokens = sequence.tokens;
    sequence.blocks = sequence.scored < sequence.score_end
                          ? pool_.find({tokens.begin(), tokens.begin() + sequence.scored + 1}, sequence.cache_key)
                          : pool_.find(tokens, sequence.cache_key);
  }
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
  if (options_.keeps_prefixes && !sequence.is_pooled && sequence.held / options_.block_tokens > full)
    pool_.keep(sequence.blocks, {sequence.tokens.begin(), sequence.tokens.begin() + sequence.held}, sequence.given_back,
               sequence.cache_key);
}

// A total order of active clients. Within a step it counts the tokens that the step gives them, also those that are
// read again and cost nothing, so that clients with equal counters take turns in every step.
bool Scheduler::comes_before(const Client& a, const Client& b) {
  return std::pair(a.counter + a.granted, a.since) < std::pair(b.counter + b.granted, b.since);
}

// Returns the client that gives up blocks, if any runs. Counters alone decide, and they grow only by new work. So a
// request that preempts another one advances before it is preempted in turn, and every request ends.
Scheduler::Client* Scheduler::last_running() {
  Client* last = nullptr;
  for (auto& [name, client] : clients_)
    if (client.running > 0 &&
        (!last || std::pair(last->counter, last->since) < std::pair(client.counter, client.since)))
      last = &client;
  return last;
}

int64_t Scheduler::youngest_of(const Client& client) {
  return *std::find_if(running_.rbegin(), running_.rend(), [&](int64_t id) { return at(id).client == &client; });
}

void Scheduler::preempt(int64_t id) {
  Sequence& sequence = at(id);
  Client& client = *sequence.client;
  std::erase(running_, id);
  left_ += std::exchange(sequence.planned, 0);
  give_up(sequence);
  sequence.is_running = false;
  std::erase(client.reading, id);
  client.waiting.push_front(id);
  --client.running, ++counts_.preempted;
}

// Gets blocks for `tokens` held tokens of a running request. Returns false if the request would have to preempt itself;
// it does so unless the step has tokens of it.
bool Scheduler::has_blocks_for(Sequence& sequence, int64_t tokens) {
  while (static_cast<int64_t>(sequence.blocks.size()) < pool_.blocks_for(tokens)) {
    if (const auto block = pool_.take()) {
      sequence.blocks.push_back(*block);
      continue;
    }
    const int64_t youngest = youngest_of(*last_running());
    const bool is_own = &at(youngest) == &sequence;
    if (is_own && sequence.planned > 0) return false;
    preempt(youngest);
    if (is_own) return false;
  }
  return true;
}

bool Scheduler::plan(Sequence& sequence, int64_t count) {
  if (!has_blocks_for(sequence, sequence.held + sequence.planned + count)) return false;
  sequence.planned += count;
  left_ -= count;
  return true;
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
void Scheduler::take_proposed(ScheduledTokens& scheduled) {
  Sequence& sequence = at(scheduled.id);
  if (!scheduled.wants_next) return;
  const int64_t wanted = std::min(static_cast<int64_t>(sequence.proposed.size()), left_),
                held = scheduled.first + scheduled.count;
  take_free_blocks(sequence, held + wanted);
  const int64_t room = static_cast<int64_t>(sequence.blocks.size()) * options_.block_tokens - held;
  scheduled.proposed = std::min(wanted, room);
  left_ -= scheduled.proposed;
}

void Scheduler::plan_completions() {
  for (const int64_t id : std::vector<int64_t>(running_)) {  // preemption removes requests
    Sequence& sequence = at(id);
    if (left_ > 0 && sequence.is_running && sequence.is_answering()) plan(sequence, 1);
  }
}

bool Scheduler::may_start(const Client& client, Admits admits) const {
  if (client.waiting.empty() || admits == Admits::kNone) return false;
  const Sequence& first = at(client.waiting.front());
  if (first.counted > 0 && admits == Admits::kNew) return false;
  const auto shared = sequences_.find(first.after);
  return shared == sequences_.end() || shared->second.held >= shared->second.prompt;
}

// Returns the number of first tokens that need blocks when a request starts. A request that reads tokens again needs
// those of all its tokens. With fewer it would be preempted again before it does new work.
int64_t Scheduler::tokens_at_start(const Sequence& sequence, int64_t max_tokens) const {
  if (sequence.counted <= sequence.held) return sequence.held + std::min(sequence.lacking(), max_tokens);
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  return options_.window == 0 ? length
                              : std::min(length, std::max(sequence.held, options_.window) + options_.step_tokens);
}

// Gives the first waiting request of a client the blocks that it starts with. If there is no room, returns which other
// requests may start.
Scheduler::Admits Scheduler::make_room(Client& client, int64_t max_tokens) {
  Sequence& sequence = at(client.waiting.front());
  for (bool preempts = false;; preempts = true) {
    int64_t again = sequence.counted;
    if (static_cast<int64_t>(running_.size()) < options_.max_running) {
      begin(sequence);
      again = std::max<int64_t>(0, sequence.counted - sequence.held);
      const int64_t tokens = tokens_at_start(sequence, max_tokens);
      if (pool_.blocks_for(tokens) - static_cast<int64_t>(sequence.blocks.size()) <= pool_.free()) {
        take_free_blocks(sequence, tokens);
        if (preempts && again > 0) work_ = 0;
        return Admits::kAll;
      }
      give_up(sequence);
    }
    Client* last = client.running > 0 ? nullptr : last_running();
    if (!last || std::pair(last->counter, last->since) < std::pair(client.counter, client.since)) return Admits::kNone;
    if (again > work_) return Admits::kNew;
    preempt(youngest_of(*last));
  }
}

// Starts the first waiting request of a client and returns kAll, or returns which other requests may start.
Scheduler::Admits Scheduler::start_first(Client& client, int64_t max_tokens) {
  if (const Admits others = make_room(client, max_tokens); others != Admits::kAll) return others;
  const int64_t id = client.waiting.front();
  Sequence& sequence = at(id);
  counts_.prompt_tokens += static_cast<int64_t>(sequence.tokens.size());
  counts_.found_tokens += sequence.held;
  if (sequence.found < 0) {
    sequence.found = sequence.held;
    if (!sequence.is_pooled) --waiting_;
  }
  sequence.is_running = true;
  client.waiting.pop_front();
  client.reading.push_back(id);
  running_.push_back(id);
  ++client.running;
  return Admits::kAll;
}

// Returns the client whose turn it is, or null if no client can read. `readers` is set to the number of clients that
// can.
Scheduler::Client* Scheduler::next_reader(Admits admits, int64_t& readers) {
  Client* next = nullptr;
  readers = 0;
  for (auto& [name, client] : clients_) {
    if (client.reading.empty() && !may_start(client, admits)) continue;
    ++readers;
    if (!next || comes_before(client, *next)) next = &client;
  }
  return next;
}

void Scheduler::plan_prompts() {
  for (const int64_t id : running_) {
    const Sequence& sequence = at(id);
    if (sequence.lacking() > 0 && !sequence.is_answering()) sequence.client->reading.push_back(id);
  }
  Admits admits = Admits::kAll;  // less after a request found no room and waits
  while (left_ > 0) {
    int64_t readers = 0;
    Client* client = next_reader(admits, readers);
    if (!client) return;
    const int64_t max_tokens = readers > 1 ? std::min(left_, options_.chunk_tokens) : left_;
    if (client->reading.empty()) {
      const Admits others = start_first(*client, max_tokens);
      admits = std::max(admits, others);
      if (others != Admits::kAll) continue;
    }
    Sequence& sequence = at(client->reading.front());
    const int64_t count = std::min(sequence.lacking() - sequence.planned, max_tokens);
    const bool has_room = plan(sequence, count);
    if (has_room) client->granted += count;
    if (!has_room && sequence.is_running) admits = Admits::kNone;
    if (sequence.is_running && (!has_room || sequence.planned == sequence.lacking())) client->reading.pop_front();
  }
}

std::vector<Scheduler::ScheduledTokens> Scheduler::planned_step() {
  std::vector<ScheduledTokens> step;
  for (const int64_t id : running_) {
    Sequence& sequence = at(id);
    if (sequence.planned == 0) continue;
    const int64_t count = std::exchange(sequence.planned, 0), end = sequence.held + count;
    const bool is_last = count == sequence.lacking();
    ScheduledTokens scheduled{id, sequence.held, count, is_last, is_last && sequence.wants_next};
    scheduled.first_scored = sequence.scored;  // a preempted request computes the tokens before it again
    scheduled.scored = std::max<int64_t>(0, std::min(end, sequence.score_end) - sequence.scored);
    sequence.scored += scheduled.scored;
    scheduled.is_pooled = sequence.is_pooled;
    const int64_t known = std::max(sequence.counted, sequence.held);  // found tokens cost nothing
    charge(*sequence.client, std::max<int64_t>(0, std::min(end, sequence.prompt) - known));
    sequence.counted = std::max(sequence.counted, end);
    step.push_back(scheduled);
  }
  return step;
}

std::vector<Scheduler::ScheduledTokens> Scheduler::next() {
  left_ = options_.step_tokens;
  forget_idle_clients();
  for (auto& [name, client] : clients_) client.reading.clear(), client.granted = 0;
  for (const int64_t id : running_) leave_window(at(id));  // the previous step has run
  plan_completions();
  plan_prompts();
  std::vector<ScheduledTokens> step = planned_step();
  for (ScheduledTokens& scheduled : step) take_proposed(scheduled);
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

void Scheduler::append(int64_t id, int64_t token) {
  Sequence& sequence = at(id);
  sequence.tokens.push_back(token);
  charge(*sequence.client, 2);
}

void Scheduler::rewind(int64_t id, int64_t count) {
  Sequence& sequence = at(id);
  require(count >= 0 && count <= static_cast<int64_t>(sequence.tokens.size()), "engine", "tokens to keep of request ",
          id, " must be 0 to ", sequence.tokens.size(), ": got ", count);
  require(!options_.keeps_prefixes, "engine", "tokens cannot be dropped while prefixes are kept for other requests");
  sequence.tokens.resize(static_cast<size_t>(count));
  sequence.held = std::min(sequence.held, count);
  sequence.counted = std::min(sequence.counted, count);
  give_back_behind(sequence, sequence.held);
}

void Scheduler::cut(int64_t id, int64_t first, int64_t count) {
  Sequence& sequence = at(id);
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  require(first >= 0 && count >= 0 && first + count < length, "engine", "request ", id, " has ", length,
          " tokens, of which ", count, " from ", first, " on cannot be removed");
  give_up(sequence);
  sequence.tokens.erase(sequence.tokens.begin() + first, sequence.tokens.begin() + first + count);
  sequence.prompt = length - count;
  sequence.counted = 0;
  if (sequence.is_running) begin(sequence);
}

void Scheduler::remove(int64_t id) {
  Sequence& sequence = at(id);
  Client& client = *sequence.client;
  give_up(sequence);
  if (sequence.is_running) --client.running;
  if (sequence.is_pooled)
    --pooled_;
  else if (sequence.found < 0)
    --waiting_;
  --client.requests;
  std::erase(running_, id);
  std::erase(client.waiting, id);
  sequences_.erase(id);
}

}  // namespace colossal::infer
