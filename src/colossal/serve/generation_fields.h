// Reads the fields that completions and chats share.
#pragma once
#include <string>

#include "colossal/serve/body_fields.h"
#include "colossal/serve/request_reader.h"

namespace colossal::serve {

/// Throws http::RequestError 404 "model_not_found" for a `model` that is not `name`, the model of this server.
[[noreturn]] void refuse_model(const std::string& model, const std::string& name);

/// Refuses a request for another model than `name`. Returns the model's name in the request, or "".
/// Errors: http::RequestError 404 "model_not_found".
std::string read_model(const BodyFields& fields, const std::string& name);

/// Reads all shared fields but max_tokens and logprobs.
void read_generation(const BodyFields& fields, const ReaderOptions& reader, GenerationRequest& request);

/// Refuses a schema that is too long: http::RequestError 400 with `param`.
void check_schema_size(const std::string& schema, const std::string& param);

/// Reads messages, tools and chat_template_kwargs, which are added to the variables of the defaults.
void read_chat_input(const BodyFields& fields, const ReaderOptions& reader, ChatRequest& request);

}  // namespace colossal::serve
