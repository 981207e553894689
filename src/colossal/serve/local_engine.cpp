#include "colossal/serve/local_engine.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/run_folder.h"
#include "colossal/comm/mesh.h"
#include "colossal/distributed/config.h"
#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/infer/generation_defaults.h"
#include "colossal/infer/prompts/answer_stream.h"
#include "colossal/run/adapter_end_ids.h"
#include "colossal/serve/engine_loop.h"
#include "colossal/serve/local_host.h"
#include "colossal/text/end_tokens.h"

namespace colossal::serve {
namespace {

/// Returns true for a Hugging Face folder without a tokenizer: it takes and returns ids.
bool lacks_tokenizer(const ModelOptions& model) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::exists(model.from + "/config.json", ignored) &&
                         !std::filesystem::exists(RunFolder(model.from).config(), ignored);
  return is_folder && model.tokenizer.empty() && !text::has_tokenizer(model.from);
}

/// Lets requests choose LocalEngineOptions::adapters.
void offer_adapters(LocalEngineOptions& options) {
  if (options.adapters.empty()) return;
  require(options.model.adapters.empty(), "adapter",
          "adapters must be put onto the model, or be chosen by requests: got both adapter and adapters");
  options.model.adapters = std::exchange(options.adapters, {});
  options.model.name_beside_adapters = "the model";
}

/// Checks options that a program made, and completes them for the model.
LocalEngineOptions settled(LocalEngineOptions options) {
  offer_adapters(options);
  options.model.check_tokenizer("engine");
  options.model.check([](const char*) { return false; }, /*drafts_nothing=*/false);
  if (!options.model.cache_type.empty()) options.engine.cache_dtype = cache_dtype_of(options.model.cache_type);
  if (lacks_tokenizer(options.model)) options.model.tokenizer = "none";
  return options;
}

/// Reads the members of `object` and returns their names. Messages spell an option as the command does, whose options
/// these are.
std::vector<std::string> read_members(const nlohmann::ordered_json& object, LocalEngineOptions& options) {
  try {
    return read_json(object, options, "engine");
  } catch (const Error& error) {
    for (const auto& member : object.items())
      if (error.message().starts_with(member.key() + " "))
        throw Error("engine",
                    "colossal generate: " + flag_of(member.key()) + error.message().substr(member.key().size()));
    throw;
  }
}

/// Makes the error of a request from the message of its last event, which may begin with a component.
Error error_of_event(const std::string& message) {
  const size_t end = message.starts_with('[') ? message.find("] ") : std::string::npos;
  if (end == std::string::npos) return Error("engine", message);
  return Error(message.substr(1, end - 1), message.substr(end + 2));
}

}  // namespace

void LocalEngineOptions::fields(Fields& f) {
  model.source_fields(f);
  model.weight_fields(f);
  model.engine_fields(f, engine);
  f.texts("adapters", adapters, "NAME=FOLDER[:SCALE]: adapters of which each request chooses one, or none");
}

LocalEngineOptions read_local_engine_options(const std::string& json) {
  LocalEngineOptions options;
  const nlohmann::ordered_json object = parse_ordered_json(json, "the options", "engine");
  const std::vector<std::string> given = read_members(object, options);
  const auto is_given = [&given](const char* name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  offer_adapters(options);
  options.model.check_tokenizer("engine");
  const std::string unused =
      options.model.check(is_given, is_given("draft_tokens") && options.engine.draft_tokens == 0);
  require(unused.empty(), "engine", "colossal generate: ", unused);
  return options;
}

struct LocalEngine::Host : LocalHost {
  explicit Host(LocalEngineOptions options_) : options(settled(std::move(options_))) {}

  const LocalEngineOptions options;
  // Set by the thread before the constructor of LocalEngine returns.
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<std::string> notices;
  int64_t max_length = 0;
  infer::SamplingOptions sampling;

  void run(comm::World& world);
  const text::Tokenizer& required_tokenizer() const {
    require(tokenizer != nullptr, "engine", options.model.from,
            " holds no tokenizer, so a prompt must be a list of token ids: got a text; name a tokenizer, or pass ids");
    return *tokenizer;
  }
};

/// The state that the engine's thread and the readers of a request share.
struct LocalRequest::State {
  State(std::shared_ptr<LocalEngine::Host> host_, std::vector<std::string> stop) : host(std::move(host_)) {
    if (host->tokenizer) stream.emplace(*host->tokenizer, std::move(stop));
  }
  ~State() {
    if (wake >= 0) ::close(wake);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const std::shared_ptr<LocalEngine::Host> host;
  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  Ticket ticket = 0;  // 0 = not added to the loop yet
  std::optional<infer::AnswerStream> stream;
  AnswerPart part;
  bool has_ended = false;
  std::string error;  // "" = none
  int wake = -1;      // descriptor of LocalRequest::descriptor(); -1 = none yet

  bool is_readable() const { return has_ended || !part.is_empty(); }
  void tell() {
    changed.notify_all();
    if (wake >= 0) ::eventfd_write(wake, 1);
  }
  /// Ends the answer unless it has ended. The caller holds the lock.
  void end(infer::FinishReason reason, const std::string& message = "") {
    if (has_ended) return;
    const bool is_whole = reason != infer::FinishReason::Failed && reason != infer::FinishReason::Cancelled;
    if (stream && is_whole) part.text += stream->finish();
    part.finish_reason = stream && is_whole && stream->is_stopped() ? infer::FinishReason::AtStop : reason;
    error = message;
    has_ended = true;
    tell();
  }
  void on_event(const infer::Event& event);
};

void LocalRequest::State::on_event(const infer::Event& event) {
  Ticket stopped = 0;
  {
    const std::lock_guard lock(mutex);
    if (has_ended) return;
    part.prompt_log_probabilities.insert(part.prompt_log_probabilities.end(), event.prompt_log_probabilities.begin(),
                                         event.prompt_log_probabilities.end());
    if (event.is_answer()) {
      part.ids.push_back(event.token);
      if (event.log_probabilities) part.log_probabilities.push_back(*event.log_probabilities);
      if (stream) part.text += stream->push(event.token);
    }
    if (stream && stream->is_stopped()) {
      stopped = ticket;  // 0: submit() cancels it
      end(infer::FinishReason::AtStop);
    } else if (event.finish_reason != infer::FinishReason::None) {
      // Who calls next() needs an error, whether the request or the engine has failed.
      const bool has_failed = event.finish_reason == infer::FinishReason::EngineEnded;
      end(has_failed ? infer::FinishReason::Failed : event.finish_reason, event.error);
    } else {
      tell();
    }
  }
  if (stopped > 0) host->cancel(stopped);
}

LocalRequest::LocalRequest(std::shared_ptr<State> state) : state_(std::move(state)) {}

LocalRequest::~LocalRequest() { cancel(); }

AnswerPart LocalRequest::next(std::chrono::milliseconds timeout) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.changed.wait_for(lock, timeout, [&] { return s.is_readable(); });
  const bool fails = s.part.finish_reason == infer::FinishReason::Failed;
  if (fails && s.part.is_empty()) throw error_of_event(s.error);
  AnswerPart taken = std::exchange(s.part, {});
  if (s.has_ended) s.part.finish_reason = taken.finish_reason;  // for the next calls, and the descriptor stays readable
  if (fails) taken.finish_reason = infer::FinishReason::None;
  if (eventfd_t count = 0; s.wake >= 0 && !s.has_ended) ::eventfd_read(s.wake, &count);
  return taken;
}

int LocalRequest::descriptor() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.wake < 0) {
    s.wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    require(s.wake >= 0, "engine", "no descriptor is free; raise `ulimit -n`, or run fewer requests at a time");
    if (s.is_readable()) ::eventfd_write(s.wake, 1);
  }
  return s.wake;
}

void LocalRequest::cancel() {
  Ticket ticket = 0;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->has_ended) return;
    state_->end(infer::FinishReason::Cancelled);
    ticket = state_->ticket;
  }
  state_->host->cancel(ticket);
}

void LocalEngine::Host::run(comm::World& world) {
  const distributed::ParallelConfig layout;
  comm::Mesh mesh(world, layout.axes());
  const run::Loading loading = options.model.loading();
  ModelAndDraft loaded = load_with_draft(options.model, loading, mesh, layout, nullptr);
  tokenizer = std::move(loaded.model.tokenizer);  // readers decode with it after the model is gone
  if (!tokenizer) loaded.model.end_ids = text::end_ids(options.model.from);
  notices = loaded.model.notices;
  const infer::GenerationDefaults defaults = infer::read_generation_defaults(options.model.from);
  sampling = defaults.sampling;
  if (!defaults.ignored.empty()) notices.push_back(infer::notice_of_ignored(defaults.ignored));
  infer::EngineOptions engine_options = with_draft(options.engine, loaded.draft ? &*loaded.draft : nullptr);
  engine_options.adapters = loaded.model.adapters;
  engine_options.alone = loaded.model.model->decoding_model().shape.task().answers();
  infer::Engine engine(*loaded.model.model, engine_options);
  max_length = engine.max_length();
  std::optional<infer::SchemaCache> schemas;
  if (tokenizer) schemas.emplace(*tokenizer, loaded.model.end_ids);
  std::map<std::string, std::vector<int64_t>> adapter_end_ids;
  if (tokenizer && options.model.tokenizer != "bytes")
    for (const run::AdapterChoice& choice : loading.named_adapters)
      adapter_end_ids[choice.name] = run::end_ids_of_adapter(choice.folder, *tokenizer, loaded.model.end_ids);
  EngineLoop own(world, mesh,
                 {.engine = &engine,
                  .schemas = schemas ? &*schemas : nullptr,
                  .end_ids = loaded.model.end_ids,
                  .adapter_end_ids = std::move(adapter_end_ids),
                  .max_waiting = std::numeric_limits<int64_t>::max() / 2,
                  .prompt_end = tokenizer ? tokenizer->end_id() : -1});
  serve(own);
}

LocalEngine::LocalEngine(LocalEngineOptions options) : host_(std::make_shared<Host>(std::move(options))) {
  host_->start([host = host_.get()](comm::World& world) { host->run(world); });
}

LocalEngine::~LocalEngine() { close(); }

void LocalEngine::close() { host_->close(); }

namespace {

/// Adds generations to the loop together and returns a request for each.
std::vector<std::unique_ptr<LocalRequest>> start_requests(const std::shared_ptr<LocalEngine::Host>& host,
                                                          std::vector<Generation> generations) {
  std::vector<std::shared_ptr<LocalRequest::State>> states;
  for (Generation& generation : generations) {
    const auto state = std::make_shared<LocalRequest::State>(host, generation.options.stop);
    // The loop destroys the function without a last event if the request was cancelled or the engine is closed.
    const std::shared_ptr<void> ending(nullptr, [state](void*) {
      const std::lock_guard lock(state->mutex);
      state->end(infer::FinishReason::Cancelled);
    });
    generation.on_event = [state, ending](const infer::Event& event) { state->on_event(event); };
    states.push_back(state);
  }
  const std::optional<Ticket> first = host->give([&](ReplicaLoop& loop) { return loop.add(std::move(generations)); });
  require(first.has_value(), "engine", "the engine must be open: got a request after close()");
  std::vector<std::unique_ptr<LocalRequest>> requests;
  for (const auto& state : states) {
    const Ticket ticket = *first + std::ssize(requests);
    requests.push_back(std::make_unique<LocalRequest>(state));
    bool has_ended = false;
    {
      const std::lock_guard lock(state->mutex);
      state->ticket = ticket;
      has_ended = state->has_ended;
    }
    if (has_ended) host->cancel(ticket);  // a stop string came before the ticket was known
  }
  return requests;
}

}  // namespace

std::unique_ptr<LocalRequest> LocalEngine::submit(std::vector<int64_t> prompt, infer::GenerationOptions options,
                                                  const std::string& adapter) {
  require(options.stop.empty() || host_->tokenizer, "engine",
          "stop strings need a tokenizer: got a model without one; leave out stop, or name a tokenizer");
  std::vector<Generation> generations(1);
  generations[0] = {.prompt = std::move(prompt), .options = std::move(options), .adapter = adapter};
  return std::move(start_requests(host_, std::move(generations)).front());
}

std::vector<std::unique_ptr<LocalRequest>> LocalEngine::score(const std::vector<infer::GivenAnswer>& given,
                                                              const std::string& adapter) {
  const std::vector<infer::ScoringTurn> turns = infer::scoring_turns(given, host_->options.engine.step_tokens);
  std::vector<Generation> generations;
  for (const infer::ScoringTurn& turn : turns) {
    infer::Request request = infer::scoring_request(given[turn.index]);
    generations.push_back({.prompt = std::move(request.prompt),
                           .options = std::move(request.options),
                           .after = turn.after,
                           .scored_from = request.scored_from,
                           .adapter = adapter});
  }
  std::vector<std::unique_ptr<LocalRequest>> sent = start_requests(host_, std::move(generations)),
                                             requests(given.size());
  for (size_t i = 0; i < turns.size(); ++i) requests[turns[i].index] = std::move(sent[i]);
  return requests;
}

infer::GenerationOptions LocalEngine::options(const std::string& json) const {
  infer::GenerationOptions options{.sampling = host_->sampling};
  const nlohmann::ordered_json object = parse_ordered_json(json, "the options", "generate");
  const std::vector<std::string> given = read_json(object, options, "generate");
  options.check();
  if (options.sampling.temperature > 0) return options;
  for (const char* name : {"top_k", "top_p", "min_p", "seed"})
    require(std::find(given.begin(), given.end(), name) == given.end(), "sampling", name,
            " has no effect at temperature 0, which always takes the most probable token; set temperature");
  return options;
}

std::vector<int64_t> LocalEngine::prompt_ids(const std::string& text) const {
  return host_->required_tokenizer().encode_prompt(text);
}

infer::GivenAnswer LocalEngine::answer_ids(const std::string& prompt, const std::string& answer) const {
  return infer::encode_answer(host_->required_tokenizer(), prompt, answer).ids;
}

text::ChatTemplate LocalEngine::chat_template(const std::string& adapter) const {
  std::optional<text::ChatTemplate> found = host_->options.model.chat_template("", adapter);
  require(found.has_value(), "engine", host_->options.model.from,
          " has no chat template, which a chat needs; put a chat_template.jinja into the folder, or pass prompts");
  return *std::move(found);
}

std::shared_ptr<const text::Tokenizer> LocalEngine::tokenizer() const { return host_->tokenizer; }
int64_t LocalEngine::max_length() const { return host_->max_length; }
const std::vector<std::string>& LocalEngine::notices() const { return host_->notices; }

}  // namespace colossal::serve
