#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/verifiers/built_in.h"
#include "colossal/text/verifiers/json_schema_check.h"
#include "colossal/text/verifiers/made_once.h"

namespace colossal::text {
namespace {

class ValidJson final : public Verifier {
 public:
  void check(const PromptLine& line) override { schema_of(line); }

  Verdict verify(const PromptLine& line, const Completion& completion) override {
    const JsonSchemaCheck* const schema = schema_of(line);
    try {
      const nlohmann::json value = parse_json(completion.text, "the answer", "verifier");
      std::string fault = schema ? schema->fault_of(value) : "";
      return {.value = fault.empty() ? 1.0 : 0.0, .text = std::move(fault)};
    } catch (const Error& error) {
      return {.value = 0, .text = error.message()};
    }
  }

 private:
  /// Returns the schema of the line; null = it has none.
  const JsonSchemaCheck* schema_of(const PromptLine& line) {
    const auto member = line.members.find("schema");
    if (member == line.members.end() || member->is_null()) return nullptr;  // columns of a table have null
    const std::string text = member->is_string() ? member->get<std::string>() : member->dump();
    return &schemas_.of(text, [&] {
      try {
        return JsonSchemaCheck(parse_json(text, "the schema", "verifier"));
      } catch (const Error& error) {
        refuse_member(line, "schema", "json", "which must be a JSON Schema of draft 7", error.message());
      }
    });
  }

  MadeOnce<JsonSchemaCheck> schemas_;
};

}  // namespace

std::unique_ptr<Verifier> valid_json() { return std::make_unique<ValidJson>(); }

}  // namespace colossal::text
