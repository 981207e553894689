#include "colossal/text/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/json_grammar_parts.h"

namespace colossal::text {
namespace {

using Schema = nlohmann::ordered_json;

constexpr char kComponent[] = "json schema";
const std::set<std::string> kUnread = {"title",  "description", "default",    "examples", "$schema",
                                       "$id",    "$comment",    "deprecated", "readOnly", "writeOnly",
                                       "format", "$defs",       "definitions"};
const std::set<std::string> kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};
const std::map<std::string, std::string> kTypeOf = {{"properties", "object"},
                                                    {"required", "object"},
                                                    {"additionalProperties", "object"},
                                                    {"items", "array"},
                                                    {"prefixItems", "array"},
                                                    {"minItems", "array"},
                                                    {"maxItems", "array"},
                                                    {"minLength", "string"},
                                                    {"maxLength", "string"},
                                                    {"minimum", "integer"},
                                                    {"maximum", "integer"},
                                                    {"exclusiveMinimum", "integer"},
                                                    {"exclusiveMaximum", "integer"}};

bool is_of(const Schema& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "integer" && value.is_number_float()) return std::trunc(value.get<double>()) == value.get<double>();
  return value.is_number();
}

/// A schema within the whole one, and where it lies: "#/properties/age".
struct Place {
  const Schema* schema;
  std::string path;
  const Schema* find(const char* keyword) const {
    const auto at = schema->find(keyword);
    return at == schema->end() ? nullptr : &*at;
  }
  Place of(const Schema& within, const std::string& step) const { return {&within, path + "/" + printable(step)}; }
};

class Compiler {
 public:
  Compiler(const Schema& whole, Grammar& grammar, const std::string& name)
      : whole_(whole), grammar_(grammar), name_(name), json_(grammar) {}

  int compile() {
    const int value = rule_of({&whole_, "#"});
    // A loop, not a recursion: schemas may refer to each other in a chain of any length.
    while (!waiting_.empty()) {
      const auto [rule, place] = waiting_.back();
      waiting_.pop_back();
      grammar_.set(rule, node_of(place));
    }
    // a vocabulary of SentencePiece may begin every text with a space
    const int text = grammar_.declare(), begin = grammar_.call(value, Grammar::kReturn);
    grammar_.set(text, grammar_.either({begin, grammar_.literal(" ", begin)}));
    return text;
  }

 private:
  /// The one rule of a schema, however often it is referred to.
  int rule_of(const Place& place) {
    const auto [at, is_new] = rules_.try_emplace(place.schema, 0);
    if (is_new) {
      at->second = grammar_.declare();
      waiting_.emplace_back(at->second, place);
    }
    return at->second;
  }

  template <class... Parts>
  void check(bool ok, const Place& place, const Parts&... parts) const {
    require(ok, kComponent, name_, " ", place.path, ": ", parts...);
  }

  /// `keyword` stands alone: nothing beside it but what changes nothing, and `also`.
  void check_alone(const Place& place, const std::string& keyword, const char* also = "") const {
    for (const auto& [other, value] : place.schema->items())
      check(other == keyword || other == also || kUnread.contains(other), place, "\"", printable(other), "\" beside \"",
            keyword, "\" is not read; leave one of them out");
  }

  int node_of(const Place& place) {
    const int end = Grammar::kReturn;
    if (place.schema->is_boolean()) return place.schema->get<bool>() ? grammar_.call(json_.any(), end) : nothing();
    check(place.schema->is_object(), place, "a schema must be an object, true or false");
    for (const auto& [keyword, value] : place.schema->items()) {
      if (keyword == "$ref") return reference(place);
      if (keyword == "anyOf" || keyword == "oneOf" || keyword == "allOf") return alternatives(place, keyword);
      if (keyword == "enum" || keyword == "const") return values(place, keyword);
    }
    std::vector<int> ways;
    for (const std::string& type : types(place)) ways.push_back(of_type(place, type));
    return ways.empty() ? grammar_.call(json_.any(), end) : grammar_.either(ways);
  }

  int nothing() { return grammar_.either({}); }

  int reference(const Place& place) {
    check_alone(place, "$ref");
    const Schema& value = *place.find("$ref");
    const std::string target = value.is_string() ? value.get<std::string>() : "";
    const Schema* found = nullptr;
    if (target == "#") found = &whole_;
    if (target.starts_with("#/")) try {
        const Schema::json_pointer pointer(target.substr(1));
        if (whole_.contains(pointer)) found = &whole_.at(pointer);
      } catch (const nlohmann::json::exception&) {  // no pointer: found nothing
      }
    check(found, place, "$ref must point to a schema of this file, as \"#/$defs/name\" does: got ", printable(target));
    return grammar_.call(rule_of({found, printable(target)}), Grammar::kReturn);
  }

  int alternatives(const Place& place, const std::string& keyword) {
    check_alone(place, keyword);
    const Schema& list = *place.find(keyword.c_str());
    check(list.is_array() && !list.empty(), place, keyword, " must be a list of schemas");
    check(keyword != "allOf" || list.size() == 1, place, "allOf is read of one schema only; write it as one");
    std::vector<int> ways;
    for (size_t i = 0; i < list.size(); ++i)
      ways.push_back(grammar_.call(rule_of(place.of(list[i], concat(keyword, "/", i))), Grammar::kReturn));
    return grammar_.either(ways);
  }

  int values(const Place& place, const std::string& keyword) {
    check_alone(place, keyword, "type");
    const Schema& value = *place.find(keyword.c_str());
    check(keyword == "const" || value.is_array(), place, "enum must be a list");
    const std::vector<std::string> allowed = types(place);
    std::vector<int> ways;
    const auto add = [&](const Schema& one) {
      const auto is_one = [&](const std::string& type) { return is_of(one, type); };
      if (allowed.empty() || std::any_of(allowed.begin(), allowed.end(), is_one))
        ways.push_back(grammar_.literal(one.dump(), Grammar::kReturn));
    };
    if (keyword == "const") add(value);
    if (keyword == "enum") std::for_each(value.begin(), value.end(), add);
    return grammar_.either(ways);
  }

  /// Those of "type", or without it those that keywords are about; none: any.
  std::vector<std::string> types(const Place& place) const {
    std::set<std::string> listed;
    if (const Schema* type = place.find("type")) {
      const auto add = [&](const Schema& one) {
        check(one.is_string() && kTypes.contains(one.get<std::string>()), place,
              "type must be object, array, string, number, integer, boolean or null, or a list of them");
        listed.insert(one.get<std::string>());
      };
      if (type->is_array())
        std::for_each(type->begin(), type->end(), add);
      else
        add(*type);
      check(!listed.empty(), place, "type must name a type");
    }
    std::set<std::string> found = listed;
    for (const auto& [keyword, value] : place.schema->items()) {
      if (keyword == "type" || keyword == "enum" || keyword == "const" || kUnread.contains(keyword)) continue;
      if (keyword == "uniqueItems" && value == false) continue;
      const auto at = kTypeOf.find(keyword);
      check(at != kTypeOf.end(), place, "the keyword \"", printable(keyword),
            "\" is not read, so that what it demands could not be kept; leave it out");
      check(listed.empty() || (listed.contains(at->second) && !(at->second == "integer" && listed.contains("number"))),
            place, "\"", keyword, "\" is read of type ", at->second, " only");
      found.insert(at->second);
    }
    return {found.begin(), found.end()};
  }

  int of_type(const Place& place, const std::string& type) {
    const int end = Grammar::kReturn;
    if (type == "object") return object(place);
    if (type == "array") return array(place);
    if (type == "string") {
      const std::optional<int64_t> least = count(place, "minLength"), most = count(place, "maxLength");
      return json_.string(least.value_or(0), most, end);
    }
    if (type == "integer") return integer(place);
    if (type == "number") return json_.number(end);
    if (type == "null") return grammar_.literal("null", end);
    return grammar_.either({grammar_.literal("true", end), grammar_.literal("false", end)});
  }

  std::optional<int64_t> count(const Place& place, const char* keyword) const {
    const Schema* value = place.find(keyword);
    if (!value) return {};
    const double number = value->is_number() ? value->get<double>() : -1;
    check(number >= 0 && number <= Grammar::kMostNodes && std::trunc(number) == number, place, keyword,
          " must be a whole number of at most ", Grammar::kMostNodes, ": got ", printable(value->dump()));
    return static_cast<int64_t>(number);
  }

  int integer(const Place& place) {
    std::optional<int64_t> least, most;
    const auto bound = [&](const char* keyword, bool is_least, bool excludes) {
      const Schema* value = place.find(keyword);
      if (!value) return;
      check(value->is_number() && std::abs(value->get<double>()) <= 1e18, place, keyword,
            " must be a number in [-10^18, 10^18]: got ", printable(value->dump()));
      const double number = value->get<double>();
      const bool is_whole = value->is_number_integer() || std::trunc(number) == number;
      int64_t edge = value->is_number_integer()
                         ? value->get<int64_t>()
                         : static_cast<int64_t>(is_least ? std::ceil(number) : std::floor(number));
      if (excludes && is_whole) edge += is_least ? 1 : -1;
      if (is_least) least = std::max(least.value_or(edge), edge);
      if (!is_least) most = std::min(most.value_or(edge), edge);
    };
    bound("minimum", true, false);
    bound("exclusiveMinimum", true, true);
    bound("maximum", false, false);
    bound("exclusiveMaximum", false, true);
    return json_.integer(least, most, Grammar::kReturn);
  }

  int array(const Place& place) {
    std::vector<int> front;
    if (const Schema* prefix = place.find("prefixItems")) {
      check(prefix->is_array(), place, "prefixItems must be a list of schemas");
      for (size_t i = 0; i < prefix->size(); ++i)
        front.push_back(rule_of(place.of((*prefix)[i], concat("prefixItems/", i))));
    }
    const auto least = static_cast<size_t>(count(place, "minItems").value_or(0));
    const std::optional<int64_t> most = count(place, "maxItems");
    int rest = json_.any();
    if (const Schema* items = place.find("items")) {
      check(!items->is_array(), place, "items must be one schema; a list of them is written prefixItems");
      rest = rule_of(place.of(*items, "items"));
    } else if (!front.empty() && least <= front.size()) {
      grammar_.set(rest = grammar_.declare(), nothing());
    }
    const int close = json_.space(grammar_.literal("]", Grammar::kReturn));
    const size_t counted = most ? static_cast<size_t>(*most) : std::max(front.size(), least);
    int node = close;  // after `i` items
    if (!most) {
      const int more = grammar_.reserve(), item = json_.space(grammar_.call(rest, more));
      grammar_.define(more, {close, grammar_.literal(",", item)});
      node = counted > 0 ? more : grammar_.either({close, item});
    }
    if (least > counted) return nothing();
    for (size_t i = counted; i-- > 0;) {
      const int item = json_.space(grammar_.call(i < front.size() ? front[i] : rest, node));
      std::vector<int> ways{i > 0 ? grammar_.literal(",", item) : item};
      if (i >= least) ways.push_back(close);
      node = grammar_.either(ways);
    }
    return grammar_.literal("[", node);
  }

  struct Member {
    std::string name;
    int rule;
    bool is_required;
  };

  /// Of "properties", then those that only "required" names.
  std::vector<Member> members_of(const Place& place, int extra) {
    std::set<std::string> required, named;
    if (const Schema* names = place.find("required")) {
      check(names->is_array(), place, "required must be a list of names");
      for (const Schema& one : *names) {
        check(one.is_string(), place, "required must be a list of names");
        required.insert(one.get<std::string>());
      }
    }
    std::vector<Member> members;
    if (const Schema* properties = place.find("properties")) {
      check(properties->is_object(), place, "properties must be an object of schemas");
      for (const auto& [name, schema] : properties->items()) {
        members.push_back({name, rule_of(place.of(schema, "properties/" + name)), required.contains(name)});
        named.insert(name);
      }
    }
    for (const std::string& name : required)
      if (!named.contains(name)) members.push_back({name, extra, true});
    return members;
  }

  int object(const Place& place) {
    const Schema* additional = place.find("additionalProperties");
    const int extra = additional ? rule_of(place.of(*additional, "additionalProperties")) : json_.any();
    const std::vector<Member> members = members_of(place, extra);
    const int close = json_.space(grammar_.literal("}", Grammar::kReturn));
    // what follows where no member was written yet, and where some were
    int first = close, more = close;
    if (additional || members.empty()) {
      std::set<std::string> names;
      for (const Member& member : members) names.insert(member.name);
      more = grammar_.reserve();
      const int value = grammar_.literal(":", json_.space(grammar_.call(extra, more)));
      const int other = json_.space(names.empty() ? json_.string(0, {}, value) : json_.other_name(names, value));
      grammar_.define(more, {close, grammar_.literal(",", other)});
      first = grammar_.either({close, other});
    }
    for (size_t i = members.size(); i-- > 0;) {
      const int value = json_.space(grammar_.call(members[i].rule, more));
      const int member = json_.space(grammar_.literal(Schema(members[i].name).dump() + ":", value));
      std::vector<int> at_first{member}, at_more{grammar_.literal(",", member)};
      if (!members[i].is_required) at_first.push_back(first), at_more.push_back(more);
      first = grammar_.either(at_first);
      more = grammar_.either(at_more);
    }
    return grammar_.literal("{", first);
  }

  const Schema& whole_;
  Grammar& grammar_;
  const std::string& name_;
  JsonParts json_;
  std::map<const Schema*, int> rules_;
  std::vector<std::pair<int, Place>> waiting_;
};

}  // namespace

JsonGrammar json_grammar(std::string_view schema, const std::string& name) {
  parse_json_object(schema, name, kComponent, {.bytes = int64_t{1} << 18, .distinct_names = true});
  const Schema whole = Schema::parse(schema);  // the same in the order of its members
  JsonGrammar made;
  made.rule = Compiler(whole, made.grammar, name).compile();
  return made;
}

}  // namespace colossal::text
