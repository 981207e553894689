// POST /v1/embeddings: converts texts to vectors.
#include <utility>
#include <variant>

#include "colossal/serve/answers.h"
#include "colossal/serve/body_fields.h"
#include "colossal/serve/service.h"

namespace colossal::serve {
namespace {

/// Returns the ids of a text with the special tokens that the model expects. `param` is its place in the request.
std::vector<int64_t> checked_ids(const ServedModel& model, const Prompt& input, const std::string& param) {
  const auto* text = std::get_if<std::string>(&input);
  std::vector<int64_t> ids =
      text ? as_bad_request(param, [&] { return model.tokenizer->encode_whole(model.embedding_prompt + *text).ids; })
           : std::get<std::vector<int64_t>>(input);
  try {
    model.check_embedding(ids);
  } catch (const Error& error) {
    const bool is_long = static_cast<int64_t>(ids.size()) > model.max_length;
    throw http::RequestError(400, param + ": " + error.message(), param, is_long ? "context_length_exceeded" : "");
  }
  return ids;
}

/// Fields of the request that its answer repeats.
struct VectorsForm {
  uint64_t number = 0;  ///< http::Request::number
  bool base64 = false;
  int64_t prompt_tokens = 0;
};

void answer_vectors(Service& service, http::Exchange exchange, const VectorsForm& form, const Vectors& vectors) {
  if (vectors.error.empty())
    return exchange.answer(
        {.body = embeddings_json(service.model().name, vectors.rows, form.base64, form.prompt_tokens)});
  service.note(form.number, [](RequestRecord& record) { record.reason = "error"; });
  exchange.answer(http::ErrorAnswer{.status = 500, .message = vectors.error});
}

}  // namespace

void embed_texts(Service& service, const http::Request& request, http::Exchange exchange) {
  const ServedModel& model = service.model();
  if (!model.check_embedding) throw http::RequestError(400, model.no_embeddings);
  const EmbeddingRequest wanted = service.reader().embedding(request.body);
  if (const ServedAdapter* const adapter = model.adapter_of(wanted.model))
    throw http::RequestError(400,
                             concat("model must be ", model.name, " for embeddings: got ", adapter->name,
                                    ", which is an adapter and continues text only"),
                             "model");
  VectorsForm form{.number = request.number, .base64 = wanted.base64};
  // A client of its own, so that a long text takes turns with the chats of the same client.
  Embedding work{.client = "embeddings of " + http::client_of(request)};
  for (const Prompt& input : wanted.inputs) {
    const std::string param = wanted.inputs.size() > 1 ? concat("input[", work.texts.size(), "]") : "input";
    work.texts.push_back(checked_ids(model, input, param));
    form.prompt_tokens += static_cast<int64_t>(work.texts.back().size());
  }
  const auto place = service.take_embedding_place(form.prompt_tokens);
  work.on_vectors = [&service, exchange, form, place](Vectors vectors) mutable {
    exchange.post(
        [&service, exchange, form, vectors = std::move(vectors)] { answer_vectors(service, exchange, form, vectors); });
  };
  service.begin_record(request, exchange);
  service.note(form.number, [&](RequestRecord& record) { record.prompt_tokens = form.prompt_tokens; });
  const std::optional<Ticket> ticket = service.replica().add(std::move(work));
  if (!ticket) throw service.queue_is_full(1);
  service.metrics().prompt_tokens += form.prompt_tokens;
  exchange.when_gone([&service, ticket](http::Gone) { service.replica().cancel(*ticket); });
}

}  // namespace colossal::serve
