#include "colossal/serve/generation.h"

#include <memory>
#include <random>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/serve/body_fields.h"
#include "colossal/serve/chat_prompt.h"
#include "colossal/serve/generation_answer.h"

namespace colossal::serve {
namespace {

std::string completion_event_of(const AnswerHead& head, int64_t index, const ChoicePart& part, int64_t) {
  return completion_event(head, index, part);
}

/// Returns a seed that the seeds of the other choices can follow.
int64_t random_seed() {
  std::random_device device;
  return std::uniform_int_distribution<int64_t>(0, int64_t{1} << 53)(device);
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
                     .cache_key = service.cache_key_of(request)};
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
