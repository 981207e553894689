#include "colossal/serve/generation.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/serve/body_fields.h"
#include "colossal/serve/chat_prompt.h"

namespace colossal::serve {
namespace {

using infer::FinishReason;
using std::chrono::steady_clock;

double seconds_between(steady_clock::time_point from, steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

const char* name_of_gone(http::Gone why) {
  if (why == http::Gone::kLeft) return "left";
  return why == http::Gone::kUnread ? "unread" : "stopped";
}

/// Returns the answer to a request whose choice has failed.
http::ErrorAnswer failure_of(const infer::Event& event, const infer::GenerationOptions& options) {
  if (event.finish_reason == FinishReason::Cancelled) return {.status = 503, .message = "the request was cancelled"};
  // A schema can exceed limits, and some engines do not score prompts.
  const bool may_be_at_fault = !options.json_schema.empty() || options.prompt_logprobs >= 0;
  const bool is_at_fault = may_be_at_fault && event.finish_reason == FinishReason::Failed;
  return {.status = is_at_fault ? 400 : 500, .message = http::without_folders(event.error)};
}

void add_reason(std::string& reasons, const std::string& reason) {
  if (("+" + reasons + "+").find("+" + reason + "+") != std::string::npos) return;
  reasons += (reasons.empty() ? "" : "+") + reason;
}

}  // namespace

/// The answer to one request of completions or chats, while its choices run.
///
/// Takes the events of all choices on the replica's thread. Tasks of the exchange decode them and send the answer. The
/// functions Generation::on_event own the answer: if a replica destroys them before the last event, the exchange ends.
class GenerationAnswer : public std::enable_shared_from_this<GenerationAnswer> {
 public:
  /// `service` must outlive the answer.
  GenerationAnswer(Service& service, const http::Request& request, http::Exchange exchange, GenerationJob job);

  /// Adds the choices and begins the answer. Called once, with the request of the constructor.
  /// Errors: http::RequestError 429 if the queue is full.
  void begin(const http::Request& request, std::vector<Generation> generations);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Choice {
    ChoiceStream stream;
    ChoicePart whole{};  // all parts so far, unless the answer is a stream
    int64_t calls = 0;   // number of tool calls that events have sent
    bool has_ended = false;
  };
  struct Heard {
    size_t index;
    infer::Event event;
  };

  // On the replica's thread.
  void on_event(size_t index, const infer::Event& event);
  void measure(size_t index, const infer::Event& event);

  // In tasks of the exchange, one at a time. begin() is the first of them.
  void post_work();
  void work();
  void read(const Heard& heard);
  void send(size_t index, ChoicePart part);
  void finish();
  void fail(const http::ErrorAnswer& error);

  // On any thread.
  void leave(http::Gone why);
  bool end_with(const std::string& reason, std::optional<int64_t> answer_tokens = {});
  void cancel_all();

  Service& service_;
  http::Exchange exchange_;
  const GenerationJob job_;
  const uint64_t number_;
  const Time began_ = std::chrono::steady_clock::now();
  AnswerHead head_;
  int64_t prompt_tokens_ = 0;
  Ticket first_ticket_ = 0;
  std::atomic<bool> has_ended_{false};

  std::optional<http::EventStream> events_{};
  std::vector<Choice> choices_;
  size_t unfinished_ = 0;
  std::string reasons_;  // distinct finish reasons of the choices that have ended, joined by "+"

  struct Measured {
    bool has_begun = false;
    std::optional<Time> last_token{};
  };
  std::mutex mutex_;  // guards the members below
  std::deque<Heard> heard_;
  bool has_task_ = true;  // work() is posted or runs; begin() counts as one
  std::vector<Measured> measured_;
  int64_t found_tokens_ = 0, answer_tokens_ = 0;
  std::optional<double> first_token_seconds_{};
};

GenerationAnswer::GenerationAnswer(Service& service, const http::Request& request, http::Exchange exchange,
                                   GenerationJob job)
    : service_(service), exchange_(std::move(exchange)), job_(std::move(job)), number_(request.number) {
  const GenerationRequest& wanted = job_.request;
  const ServedAdapter* const adapter = service.model().adapter_of(wanted.model);
  head_ = {
      .id = request.id,
      .created =
          std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(),
      .model = adapter ? adapter->name : service.model().name,
      .with_logprobs = wanted.options.logprobs >= 0,
      .with_usage = wanted.include_usage};
  for (size_t p = 0; p < job_.prompts.size(); ++p) {
    prompt_tokens_ += static_cast<int64_t>(job_.prompts[p].size());
    ChoiceOptions options{.stop = wanted.options.stop, .tools = job_.tools, .reports_end = job_.writer.reports_end};
    if (!job_.echoes.empty()) options.echo = job_.echoes[p];
    for (int64_t i = 0; i < wanted.n; ++i) choices_.push_back({ChoiceStream(*service.model().tokenizer, options)});
  }
  unfinished_ = choices_.size();
  measured_.resize(choices_.size());
}

void GenerationAnswer::begin(const http::Request& request, std::vector<Generation> generations) {
  for (size_t i = 0; i < generations.size(); ++i)
    generations[i].on_event = [self = shared_from_this(), i](const infer::Event& event) { self->on_event(i, event); };
  service_.begin_record(request, exchange_);
  service_.note(number_, [this](RequestRecord& record) { record.prompt_tokens = prompt_tokens_; });
  const std::optional<Ticket> ticket = service_.replica().add(std::move(generations));
  if (!ticket) throw service_.queue_is_full(static_cast<int64_t>(choices_.size()));
  first_ticket_ = *ticket;
  service_.metrics().prompt_tokens += prompt_tokens_;
  if (job_.request.stream) {
    events_.emplace(exchange_.begin_events());
    for (size_t i = 0; i < choices_.size() && job_.writer.opening_event; ++i)
      events_->send(job_.writer.opening_event(head_, static_cast<int64_t>(i)));
  }
  exchange_.when_gone([weak = weak_from_this()](http::Gone why) {
    if (const auto self = weak.lock()) self->leave(why);
  });
  post_work();  // for events that have arrived
}

void GenerationAnswer::on_event(size_t index, const infer::Event& event) {
  if (has_ended_) return;
  {
    const std::scoped_lock lock(mutex_);
    measure(index, event);
    heard_.push_back({index, event});
    // A whole answer has time until its end, unless a stop string may come before.
    const bool is_urgent =
        job_.request.stream || !job_.request.options.stop.empty() || event.finish_reason != FinishReason::None;
    if (!is_urgent || std::exchange(has_task_, true)) return;
  }
  post_work();
}

void GenerationAnswer::measure(size_t index, const infer::Event& event) {
  Metrics& metrics = service_.metrics();
  Measured& own = measured_[index];
  const bool reads_prompt = static_cast<int64_t>(index) % job_.request.n == 0;
  if (!std::exchange(own.has_begun, true) && reads_prompt) {
    found_tokens_ += event.found;
    metrics.prefix_tokens_found += event.found;
  }
  if (!event.is_answer()) return;
  ++answer_tokens_;
  ++metrics.generated_tokens;
  const Time now = steady_clock::now();
  if (own.last_token) metrics.between_tokens_seconds.observe(seconds_between(*own.last_token, now));
  own.last_token = now;
  if (first_token_seconds_) return;
  first_token_seconds_ = seconds_between(began_, now);
  metrics.first_token_seconds.observe(*first_token_seconds_);
}

void GenerationAnswer::post_work() {
  exchange_.post([self = shared_from_this()] { self->work(); });
}

void GenerationAnswer::work() {
  std::deque<Heard> heard;
  {
    const std::scoped_lock lock(mutex_);
    heard.swap(heard_);
  }
  try {
    for (const Heard& one : heard) read(one);
  } catch (const std::exception&) {
    end_with("error");
    cancel_all();
    throw;  // the exchange answers
  }
  {
    const std::scoped_lock lock(mutex_);
    has_task_ = !heard_.empty();
    if (!has_task_) return;
  }
  post_work();  // instead of a loop, so that other requests have their turn
}

void GenerationAnswer::read(const Heard& heard) {
  Choice& choice = choices_[heard.index];
  if (has_ended_ || choice.has_ended) return;
  const FinishReason reason = heard.event.finish_reason;
  if (reason == FinishReason::Failed || reason == FinishReason::EngineEnded || reason == FinishReason::Cancelled)
    return fail(failure_of(heard.event, job_.request.options));
  ChoicePart part = choice.stream.hear(heard.event);
  if (part.is_empty()) return;
  choice.has_ended = !part.finish_reason.empty();
  if (choice.has_ended) add_reason(reasons_, part.finish_reason);
  if (choice.stream.is_stopped()) service_.replica().cancel(first_ticket_ + static_cast<Ticket>(heard.index));
  send(heard.index, std::move(part));
  if (choice.has_ended && --unfinished_ == 0) finish();
}

void GenerationAnswer::send(size_t index, ChoicePart part) {
  Choice& choice = choices_[index];
  if (!events_) return choice.whole.append(std::move(part));
  const int64_t first_call = choice.calls;
  choice.calls += static_cast<int64_t>(part.calls.size());
  events_->send(job_.writer.event(head_, static_cast<int64_t>(index), part, first_call));
}

void GenerationAnswer::finish() {
  Usage usage{.prompt_tokens = prompt_tokens_};
  for (const Choice& choice : choices_) usage.completion_tokens += choice.stream.tokens();
  {
    const std::scoped_lock lock(mutex_);
    usage.cached_tokens = found_tokens_;
  }
  if (!end_with(reasons_, usage.completion_tokens)) return;
  if (!events_) {
    std::vector<ChoicePart> parts;
    for (Choice& choice : choices_) parts.push_back(std::move(choice.whole));
    return exchange_.answer({.body = job_.writer.whole(head_, parts, usage)});
  }
  if (job_.request.include_usage) events_->send(job_.writer.usage_event(head_, usage));
  events_->send(kDone);
  events_->end();
}

void GenerationAnswer::fail(const http::ErrorAnswer& error) {
  if (!end_with("error")) return;
  cancel_all();
  if (!events_) return exchange_.answer(error);
  events_->send(http::error_json(error));
  events_->end();
}

void GenerationAnswer::leave(http::Gone why) {
  if (end_with(name_of_gone(why))) cancel_all();
}

// The log's record must be complete before the exchange ends. Returns false if the answer has ended already.
bool GenerationAnswer::end_with(const std::string& reason, std::optional<int64_t> answer_tokens) {
  if (has_ended_.exchange(true)) return false;
  const std::scoped_lock lock(mutex_);
  heard_.clear();
  service_.note(number_, [&](RequestRecord& record) {
    record.found_tokens = found_tokens_;
    record.answer_tokens = answer_tokens.value_or(answer_tokens_);
    record.first_token_seconds = first_token_seconds_;
    record.reason = reason;
  });
  return true;
}

void GenerationAnswer::cancel_all() {
  for (size_t i = 0; i < choices_.size(); ++i) service_.replica().cancel(first_ticket_ + static_cast<Ticket>(i));
}

namespace {

std::string completion_event_of(const AnswerHead& head, int64_t index, const ChoicePart& part, int64_t) {
  return completion_event(head, index, part);
}

/// Returns the members of a request that the answer needs after the handler has returned.
http::Request without_body(const http::Request& request) {
  http::Request rest;
  rest.id = request.id, rest.number = request.number;
  rest.key = request.key, rest.remote_address = request.remote_address;
  return rest;
}

/// Returns the choices of all prompts, in the order of their indices.
std::vector<Generation> generations_of(const Service& service, const http::Request& request, const GenerationJob& job) {
  std::vector<Generation> generations;
  const ServedAdapter* const adapter = service.model().adapter_of(job.request.model);
  for (size_t p = 0; p < job.prompts.size(); ++p) {
    const std::vector<int64_t>& prompt = job.prompts[p];
    const std::string param = job.prompts.size() > 1 ? concat(job.prompt_param, "[", p, "]") : job.prompt_param;
    if (prompt.empty())
      throw http::RequestError(
          400, param + " must have at least one token: got an empty text, and the model adds no token to it", param);
    Generation first{.prompt = prompt,
                     .options = job.request.options,
                     .ignores_end = job.request.ignore_eos,
                     .client = http::client_of(request),
                     .cache_key = service.cache_key_of(request),
                     .adapter = adapter ? adapter->name : ""};
    first.options.stop.clear();  // found in the text
    fit_to_room(first.options, static_cast<int64_t>(prompt.size()), service.model().max_length, param,
                service.model().even_length);
    if (!job.request.has_seed) first.options.sampling.seed = random_seed();
    const auto first_index = static_cast<int64_t>(generations.size());
    for (int64_t i = 0; i < job.request.n; ++i) {
      Generation& choice = generations.emplace_back(first);
      choice.options.sampling.seed += i;
      if (i > 0) choice.after = first_index;
    }
  }
  return generations;
}

/// Refuses answers whose log-probabilities would take hundreds of megabytes of memory. Streams keep those of prompts
/// only.
void check_reported_values(const std::vector<Generation>& generations, bool is_stream) {
  constexpr int64_t kMostValues = 4'000'000;  // about 200 bytes each, as numbers and as JSON
  double values = 0;
  for (const Generation& own : generations) {
    const infer::GenerationOptions& options = own.options;
    if (options.logprobs >= 0 && !is_stream)
      values += static_cast<double>(options.max_tokens) * (1.0 + options.logprobs);
    if (options.prompt_logprobs >= 0)
      values += static_cast<double>(own.prompt.size()) * (1.0 + static_cast<double>(options.prompt_logprobs));
  }
  if (values > kMostValues)
    throw http::RequestError(400,
                             concat("logprobs must report at most ", kMostValues, " values in all choices: got ",
                                    static_cast<int64_t>(values),
                                    "; lower logprobs, n or max_tokens, or send fewer "
                                    "prompts at once"),
                             "logprobs");
}

void begin_answer(Service& service, const http::Request& request, http::Exchange exchange, GenerationJob job) {
  std::vector<Generation> generations = generations_of(service, request, job);
  check_reported_values(generations, job.request.stream);
  const auto answer = std::make_shared<GenerationAnswer>(service, request, std::move(exchange), std::move(job));
  answer->begin(request, std::move(generations));
}

}  // namespace

AnswerWriter completion_writer() {
  return {completion_json, completion_event_of, completion_usage_event, nullptr, /*reports_end=*/true};
}
AnswerWriter chat_writer() { return {chat_json, chat_event, chat_usage_event, chat_role_event}; }

void require_continuation(const ServedModel& model) {
  if (!model.continues)
    throw http::RequestError(400, concat("the model ", model.name, " does not continue text: use /v1/embeddings"));
}

int64_t random_seed() {
  std::random_device device;
  return std::uniform_int_distribution<int64_t>(0, int64_t{1} << 53)(device);
}

void generate(Service& service, const http::Request& request, http::Exchange exchange, GenerationJob job) {
  const int64_t choices = static_cast<int64_t>(job.prompts.size()) * job.request.n;
  const int64_t max_waiting = service.options().limits.max_waiting;
  if (choices > max_waiting)
    throw http::RequestError(400,
                             concat("prompts times n must be at most ", max_waiting, ": got ", job.prompts.size(),
                                    " times ", job.request.n, "; send fewer at once, or raise --max-waiting"),
                             job.prompt_param);
  const std::string& schema = job.request.options.json_schema;
  infer::SchemaCache* const schemas = service.model().schemas;
  if (schema.empty() || schemas->has(schema))
    return begin_answer(service, request, std::move(exchange), std::move(job));
  auto compile = [&service, schemas, request = without_body(request), exchange, job = std::move(job)]() mutable {
    if (exchange.is_gone()) return;
    // The engine's thread finds the schema in the cache. Those of other ranks, which have caches of their own, find
    // there what they have compiled at the same time.
    service.replica().prepare(job.request.options.json_schema);
    as_bad_request(job.schema_param,
                   [&] { return schemas->compiled(job.request.options.json_schema, job.schema_param); });
    begin_answer(service, request, std::move(exchange), std::move(job));
  };
  exchange.post_long(std::move(compile));
}

}  // namespace colossal::serve
