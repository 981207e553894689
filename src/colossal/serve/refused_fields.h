// Fields of requests that other servers know and that would change an answer, which this server does not support.
//
//   serve::refuse_fields(fields, serve::FieldsOf::kChats);   // throws for {"mirostat": 2}, but not for {"mirostat": 0}
//
// A new field is a row in refused_fields.cpp, and a word in docs/how-to/serving.md.
#pragma once
#include <string>
#include <vector>

#include "colossal/infer/generation_options.h"
#include "colossal/serve/body_fields.h"

namespace colossal::serve {

/// Objects with fields of their own: the bodies of routes, and objects in them. Bits, of which a row may have several.
enum FieldsOf : unsigned {
  kCompletions = 1,
  kChats = 2,
  kEmbeddings = 4,
  kTokenization = 8,
  kMessages = 16,
  kStreamOptions = 32,
  kImages = 64
};

/// Refuses a field of OpenAI, vLLM or llama.cpp that is not supported, unless its value is one that changes nothing.
/// Errors: http::RequestError 400 "unsupported_parameter" with the field.
void refuse_fields(const BodyFields& fields, FieldsOf object);

/// Refuses llama.cpp's window of penalties, if `sampling` has a penalty: those of this server count the whole text.
/// Errors: as refuse_fields().
void refuse_penalty_window(const BodyFields& fields, const infer::SamplingOptions& sampling);

/// Returns the names of all fields that refuse_fields() may refuse.
std::vector<std::string> refused_field_names();

}  // namespace colossal::serve
