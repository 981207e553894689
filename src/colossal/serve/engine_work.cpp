#include "colossal/serve/engine_work.h"

#include <new>
#include <optional>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::serve {
namespace {

/// Runs `work` for one request and returns the message of its error; nothing without one. Lack of memory is no error of
/// the request, because other ranks may have enough.
template <class Work>
std::optional<std::string> error_of_request(const Work& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return plain_message(error);
  }
  return {};
}

}  // namespace

void EngineWork::fail(const infer::OnEvent& on_event, infer::FinishReason reason, const std::string& message) {
  if (on_event) on_event({.id = -1, .token = -1, .finish_reason = reason, .error = message});
}

EngineWork::EngineWork(const EngineLoopOptions& options, std::function<bool(Ticket)> is_cancelled)
    : options_(options),
      is_cancelled_(std::move(is_cancelled)),
      embeddings_(options.engine, options.embedder, is_cancelled_) {}

void EngineWork::apply(Changes changes) {
  for (const std::string& schema : changes.schemas) options_.schemas->compile_aside(schema);
  for (const Ticket ticket : changes.cancelled) cancel(ticket);
  for (NewGeneration& added : changes.generations) add(std::move(added));
  for (NewEmbedding& added : changes.embeddings) add(std::move(added));
}

void EngineWork::cancel(Ticket ticket) {
  if (const auto running = running_.find(ticket); running != running_.end()) {
    options_.engine->drop(running->second.id);
    running_.erase(running);
  }
  embeddings_.cancel(ticket);
}

void EngineWork::add(NewGeneration added) {
  Generation& own = added.generation;
  const auto first = running_.find(added.after);
  Running& running =
      running_.try_emplace(added.ticket, Running{added.ticket, -1, std::move(own.on_event)}).first->second;
  const auto error = error_of_request([&] {
    require(options_.engine, "serve", "the model must continue text: got one that only embeds");
    require(options_.schemas || own.options.json_schema.empty(), "serve",
            "json_schema needs a tokenizer: got a model without one; leave out json_schema, or name a tokenizer");
    auto constraint = options_.schemas ? options_.schemas->constraint(own.options.json_schema) : nullptr;
    running.id = options_.engine->add({.prompt = std::move(own.prompt),
                                       .end_ids = own.ignores_end ? std::vector<int64_t>() : options_.end_ids,
                                       .options = std::move(own.options),
                                       .constraint = std::move(constraint),
                                       .prompt_end = options_.prompt_end,
                                       .client = std::move(own.client),
                                       .cache_key = std::move(own.cache_key),
                                       .after = first == running_.end() ? -1 : first->second.id},
                                      [this, &running](const infer::Event& event) { on_event(running, event); });
  });
  if (!error) return;
  const auto failed = running_.extract(added.ticket);
  fail(failed.mapped().on_event, infer::FinishReason::Failed, *error);
}

void EngineWork::on_event(const Running& running, const infer::Event& event) {
  const auto pass_on = [&](const Running& to) {
    if (to.on_event && !is_cancelled_(to.ticket)) to.on_event(event);
  };
  if (event.finish_reason == infer::FinishReason::None) return pass_on(running);
  const auto ended = running_.extract(running.ticket);
  pass_on(ended.mapped());
}

void EngineWork::add(NewEmbedding added) {
  const std::function<void(Vectors)> on_vectors = added.embedding.on_vectors;
  const Ticket ticket = added.ticket;
  const auto error = error_of_request([&] { embeddings_.add(std::move(added)); });
  if (error && on_vectors && !is_cancelled_(ticket)) on_vectors({.error = *error});
}

void EngineWork::step() {
  embeddings_.begin_step();
  if (options_.engine && options_.engine->has_work()) options_.engine->step();
}

ReplicaLoad EngineWork::load() const {
  ReplicaLoad load;
  embeddings_.count(load);
  if (!options_.engine) return load;
  const infer::Engine::Load of_engine = options_.engine->load();
  load.waiting += of_engine.waiting, load.running += of_engine.running;
  load.blocks = options_.engine->blocks(), load.blocks_used = of_engine.blocks_used;
  return load;
}

void EngineWork::drop_all() {
  for (const auto& [ticket, running] : running_) options_.engine->drop(running.id);
  running_.clear();
  embeddings_.drop_all();
}

void EngineWork::fail_all(const std::string& message) {
  for (const auto& [ticket, running] : std::exchange(running_, {}))
    if (!is_cancelled_(ticket)) fail(running.on_event, infer::FinishReason::EngineEnded, message);
  embeddings_.fail_all(message);
}

}  // namespace colossal::serve
