// Reads the fields that completions and chats share.
#pragma once
#include <string>
#include <vector>

#include "colossal/serve/body_fields.h"
#include "colossal/serve/request_reader.h"

namespace colossal::serve {

/// Refuses a `model` that is none of `names`, those of this server. Empty = every name is accepted.
/// Errors: http::RequestError 404 "model_not_found".
void check_model(const std::string& model, const std::vector<std::string>& names);

/// Returns the model's name in the request, or "". Errors: errors of check_model().
std::string read_model(const BodyFields& fields, const std::vector<std::string>& names);

/// Reads all shared fields but max_tokens and logprobs.
void read_generation(const BodyFields& fields, const ReaderOptions& reader, GenerationRequest& request);

/// Refuses a schema that is too long: http::RequestError 400 with `param`.
void check_schema_size(const std::string& schema, const std::string& param);

/// Reads messages, tools and chat_template_kwargs, which are added to the variables of the defaults.
void read_chat_input(const BodyFields& fields, const ReaderOptions& reader, ChatRequest& request);

}  // namespace colossal::serve
