// A JSON Schema file: its schemas with their paths, and the targets of its references.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/grammar/json_decimal.h"

namespace colossal::text {

using Schema = nlohmann::ordered_json;

/// A parsed schema file. It owns the schemas; references to them are valid as long as the document.
class SchemaDocument {
 public:
  /// Parses a schema file. `name` appears in messages.
  /// Errors ("json schema"): not JSON, longer than 256 KiB, nested deeper than 100 levels, two members of one name; not
  ///                         an object, true or false; a $id or $anchor that occurs twice; a $id of more than 2000
  ///                         bytes after it is resolved.
  SchemaDocument(std::string_view text, const std::string& name);
  SchemaDocument(const SchemaDocument&) = delete;
  SchemaDocument& operator=(const SchemaDocument&) = delete;

  const Schema& whole() const { return whole_; }
  bool is_old_draft() const { return is_old_draft_; }  ///< true for draft 3 or 4, by its $schema
  /// Returns the path of a schema for messages: "#/properties/age".
  std::string path(const Schema& schema) const;
  /// Returns the schema that the $ref of `schema` refers to, resolved against the base URI of `schema`. Errors ("json
  /// schema"): a reference to another file or to a schema that does not exist.
  const Schema& target(const Schema& schema) const;
  /// Returns a value as the file spells it, without spaces; numbers keep all digits.
  std::string spelled(const Schema& value) const;
  Decimal decimal(const Schema& number) const { return Decimal(spelled(number)); }
  /// Returns a text that is equal for values that JSON Schema regards as equal: 1.0 is 1, and members have no order.
  std::string canonical(const Schema& value) const;

  template <class... Parts>
  void check(bool ok, const Schema& schema, const Parts&... parts) const {
    if (!ok) fail(schema, concat(parts...));
  }
  [[noreturn]] void fail(const Schema& schema, const std::string& message) const;

 private:
  /// A schema with its own URI, and the named schemas in it.
  struct Resource {
    const Schema* root;
    std::map<std::string, const Schema*> anchors{};
  };
  void spell(const Schema& value, const std::vector<std::string>& floats, size_t& at);
  /// `base` must be a key of resources_.
  void find(const Schema& schema, const std::string& path, const std::string& base);
  void find_targets();
  const Schema* at_pointer(const Schema& root, const std::string& pointer, const std::string& base);

  std::string name_;
  bool is_old_draft_ = false;  // true = "id" is read instead of "$id"
  Schema whole_;
  std::map<const Schema*, std::string> spellings_;  // spellings of numbers that are not 64-bit integers
  std::map<const Schema*, std::string> paths_;
  std::map<const Schema*, const std::string*> bases_;  // values point to keys of resources_
  std::vector<const Schema*> references_;              // schemas with $ref, in the order in which find() meets them
  std::map<std::string, Resource> resources_;
  std::map<const Schema*, const Schema*> targets_;
};

}  // namespace colossal::text
