// Hostile templates: they try to run forever, to fill the memory, to crash the program, or to access its internals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "colossal/text/chat_template.h"

namespace colossal::text::hostile_templates_test {
namespace {

using ::testing::HasSubstr;

/// Returns limits that are small, so that templates reach them quickly.
TemplateLimits small_limits() {
  TemplateLimits limits;
  limits.steps = 300'000;
  limits.bytes = int64_t{16} << 20;
  return limits;
}

std::string times(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

std::string outcome(const std::string& source, const TemplateLimits& limits = small_limits()) {
  Chat chat;
  chat.messages = {{{"role", "user"}, {"content", "Hello"}}};
  chat.now = std::tm{};
  try {
    return "rendered " + ChatTemplate(source, "hostile", {{"bos_token", "<s>"}}, limits).render(chat).text;
  } catch (const TemplateError& error) {
    return error.kind() + ": " + error.reason();
  }
}

/// Returns a template with a loop that doubles, wraps or calls the contents of a namespace.
std::string repeated(const std::string& first, const std::string& each, const std::string& last) {
  return "{% set ns = namespace(s=" + first + ", t=" + first + ") %}{% for i in range(100000) %}" + each +
         "{% endfor %}" + last;
}

TEST(HostileTemplates, StopsAtTheStepLimit) {
  const std::string loop = "{% for a in range(100000) %}";
  for (const std::string& source :
       {loop + loop + loop + "{% endfor %}{% endfor %}{% endfor %}",
        std::string("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(64) }}"),
        "{% set x = 'a' * 500000 %}{% set y = 'a' * 250000 ~ 'b' %}" + loop + "{% if y in x %}{% endif %}{% endfor %}",
        "{% set x = '\303\251' * 500000 %}" + loop + "{% if x[499999] %}{% endif %}{% endfor %}",
        "{% set x = 'a' * 500000 %}" + loop + "{% if x.isalpha() %}{% endif %}{% endfor %}",
        "{% set l = range(50000)|list %}" + loop + "{% if -1 in l %}{% endif %}{% endfor %}"})
    EXPECT_THAT(outcome(source), HasSubstr("limit: ")) << source;
  EXPECT_THAT(outcome("{% set l = range(50000)|list %}{{ l == l[:] }}{{ l == l[:] }}{{ l|sort }}"),
              HasSubstr("limit: rendering must end within 300000 steps (Limits::steps)"));
  for (const char* body : {"{% if d[x] %}{% endif %}", "{% if d.get(x) %}{% endif %}", "{% if x in d %}{% endif %}",
                           "{% if {x: 1} %}{% endif %}", "{% if '%.1000f' % 1e300 %}{% endif %}",
                           "{% if 1e-300|round(300) %}{% endif %}", "{% if 'a a'.split() %}{% endif %}"})
    EXPECT_THAT(outcome("{% set x = 'a' * 1000000 %}{% set d = {x: 1} %}" + loop + body + "{% endfor %}"),
                HasSubstr("limit: "))
        << body;
  const std::string pairs =
      "{% for i in range(90) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}";
  for (const char* last : {"{{ ns.s == ns.t }}", "{{ ns.s < ns.t }}", "{{ ns.s }}", "{{ ns.s|tojson }}"})
    EXPECT_THAT(outcome("{% set ns = namespace(s=[1], t=[1]) %}" + pairs + last), HasSubstr("limit: ")) << last;
}

TEST(HostileTemplates, StopsAtTheMemoryLimit) {
  for (const char* expression : {"'a' * 10**12",
                                 "[1] * 10**12",
                                 "'a'.center(10**12)",
                                 "'a'.zfill(10**15)",
                                 "'\\t'.expandtabs(10**15)",
                                 "'a'|indent(10**12)",
                                 "'%2000000000d' % 1",
                                 "'%*d' % (10**15, 1)",
                                 "'{:1000000000000}'.format(1)",
                                 "[1]|batch(10**12, 0)|list",
                                 "[1]|slice(10**12)|list",
                                 "[[1]]|tojson(indent=10**12)",
                                 "('a,' * 400000).split(',')",
                                 "('a,' * 400000).rsplit(',')",
                                 "('a ' * 400000).split()",
                                 "('\\n' * 900000).splitlines()",
                                 "('\\n' * 900000)|indent",
                                 "'%9000000d' % 1",
                                 "'{:9000000}'.format(1)",
                                 "([1] * 100000)|join('a' * 1000000)",
                                 "('a' * 1000000)|replace('a', 'a' * 1000000)"})
    EXPECT_THAT(outcome("{{ " + std::string(expression) + " }}"),
                HasSubstr("limit: the texts and lists that a rendering"))
        << expression;
  EXPECT_THAT(outcome(repeated("'aaaa'", "{% set ns.s = ns.s ~ ns.s %}", "")), HasSubstr("limit: "));
  EXPECT_THAT(outcome(repeated("[1]", "{% set ns.s = ns.s + ns.s %}", "")), HasSubstr("limit: "));
  EXPECT_EQ(outcome("{{ range(10**12)|length }}"),
            "OverflowError: Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  EXPECT_EQ(outcome("{{ ('%4000000d' % 1)|length }}"), "rendered 4000000");
  EXPECT_EQ(outcome("{{ ('a ' * 90000).split()|length }}"), "rendered 90000");
  TemplateLimits limits;
  EXPECT_LE(limits.bytes, int64_t{128} << 20) << "a rendering takes up to twice as much";
  limits.output_bytes = 10;
  EXPECT_THAT(outcome("{% for i in range(11) %}x{% endfor %}", limits),
              HasSubstr("within 10 bytes (Limits::output_bytes)"));
}

TEST(HostileTemplates, LimitsNesting) {
  const std::string most = "limit: expressions and blocks must be nested at most 250 deep";
  for (const auto& [open, inner, close] :
       std::vector<std::tuple<std::string, std::string, std::string>>{{"(", "1", ")"},
                                                                      {"[", "1", "]"},
                                                                      {"{1:", "1", "}"},
                                                                      {"not ", "1", ""},
                                                                      {"-", "1", ""},
                                                                      {"", "1", "+1"},
                                                                      {"", "a", ".b"},
                                                                      {"", "a", "[0]"},
                                                                      {"", "a", "()"},
                                                                      {"", "a", "|upper"},
                                                                      {"", "1 ", "if 1 else 1 "}})
    EXPECT_THAT(outcome("{{ " + times(50'000, open) + inner + times(50'000, close) + " }}"), HasSubstr(most))
        << open << close;
  EXPECT_THAT(outcome(times(30'000, "{% if 1 %}") + times(30'000, "{% endif %}")), HasSubstr(most));
  EXPECT_THAT(outcome("{% set " + times(50'000, "(") + "a" + times(50'000, ")") + " = 1 %}"), HasSubstr(most));
  const std::string deep = "limit: expressions, blocks and calls must be nested at most 1200 deep";
  EXPECT_THAT(outcome("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr(deep));
  EXPECT_THAT(outcome("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), HasSubstr(deep));
  EXPECT_THAT(outcome("{% set ns = namespace() %}{% set ns.s = ns %}{{ ns }}"), HasSubstr(deep));
  EXPECT_THAT(outcome(std::string(2'000'000, 'a')), HasSubstr("a template must have at most 1048576 bytes"));
}

TEST(HostileTemplates, LimitsDepthOfValues) {
  for (const char* each : {"[ns.s]", "{'a': ns.s}", "[ns.s].count", "cycler(ns.s)", "joiner(ns.s)"})
    EXPECT_THAT(outcome(repeated("[]", "{% set ns.s = " + std::string(each) + " %}", "")),
                HasSubstr("nested at most 200 deep"))
        << each;
  for (const std::string& each :
       {std::string("{% set ns.s = namespace(s=ns.s) %}"),
        std::string("{% for x in [ns.s] %}{% set ns.s = loop %}{% endfor %}"),
        std::string("{% set p = ns.s %}{% macro g() %}{{ p }}{% endmacro %}{% set ns.s = g %}")})
    EXPECT_THAT(outcome(repeated("1", each, "")), HasSubstr("limit: ")) << each;
  EXPECT_EQ(
      outcome("{% set ns = namespace() %}{% set ns.s = [ns] %}{% macro m() %}{{ m }}{% endmacro %}{% set ns.m = m %}x"),
      "rendered x")
      << "what refers to itself is taken apart: the leak sanitizer looks";
}

TEST(HostileTemplates, HidesInterpreterInternals) {
  const auto unsafe = [](const char* type) {
    return "SecurityError: access to attribute '__class__' of '" + std::string(type) + "' object is unsafe.";
  };
  EXPECT_EQ(outcome("{{ ''.__class__.__mro__ }}"), unsafe("str"));
  EXPECT_EQ(outcome("{{ ''['__class__'].x }}"), unsafe("str"));
  EXPECT_EQ(outcome("{{ ([]|attr('__class__')).x }}"), unsafe("list"));
  EXPECT_EQ(outcome("{{ '{0.__class__.x}'.format(1) }}"), unsafe("int"));
  EXPECT_EQ(outcome("{{ ([{}]|map(attribute='__class__')|first).x }}"), unsafe("dict"));
  EXPECT_THAT(outcome("{{ messages.append(1) }}"), HasSubstr("SecurityError: access to attribute 'append' of 'list'"));
  EXPECT_THAT(outcome("{{ messages[0].update(a=1) }}"),
              HasSubstr("SecurityError: access to attribute 'update' of 'dict'"));
  EXPECT_THAT(outcome("{% include '/etc/passwd' %}"), HasSubstr("no loader"));
}

TEST(HostileTemplates, LimitsNumbers) {
  const std::string least = "(-9223372036854775807 - 1)";
  for (const char* expression : {"9223372036854775807 + 1", "2**63", "10**12 * 10**12", "99999999999999999999"})
    EXPECT_THAT(outcome("{{ " + std::string(expression) + " }}"), HasSubstr("unsupported: integers must fit 64 bits"));
  EXPECT_THAT(outcome("{{ " + least + " // -1 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(outcome("{{ -" + least + " }}"), HasSubstr("64 bits"));
  EXPECT_THAT(outcome("{{ " + least + "|abs }}"), HasSubstr("64 bits"));
  EXPECT_EQ(outcome("{{ " + least + " % -1 }}"), "rendered 0");
  EXPECT_EQ(outcome("{{ 'abc'[" + least + ":9223372036854775807:" + least + "] }}"), "rendered ");
  EXPECT_EQ(outcome("{{ 'abc'[::" + least + "] }}{{ [1, 2][::9223372036854775807] }}"), "rendered c[1]");
  EXPECT_EQ(outcome("{{ 'abc'.find('b', " + least + ", 9223372036854775807) }}{{ 'a'.center(" + least + ") }}"),
            "rendered 1a");
  EXPECT_THAT(outcome("{{ 'abc'|truncate(" + least + ") }}"), HasSubstr("ValueError: expected length >= 3"));
  EXPECT_EQ(outcome("{{ range(9223372036854775805, 9223372036854775807)|list|length }}"), "rendered 2");
}

constexpr char kSeed[] = R"({%- set ns = namespace(found=false, n=0) -%}
{# a comment #}{% macro show(m, sep=', ') %}{{ m.role ~ sep }}{{ caller() if caller }}{% endmacro %}
{% for m in messages if m.role != 'none' recursive %}{% generation %}{{ loop.index }}{% endgeneration %}
{%- if loop.first and not ns.found %}{% set ns.found = true %}{{ m['content'][1:-1:2]|upper|trim }}{% elif m %}
{{- m.content.split('l')|map('length')|join('|') }}{% else %}{% continue %}{% endif %}
{% call show(m) %}{{ m|tojson(indent=2) }}{% endcall %}{% else %}{{ raise_exception('none') }}{% endfor %}
{% set text | replace('a', 'b') %}{{ '%05.2f' % 3.14159 }}{{ '{:>8}'.format(bos_token) }}{% endset %}
{% filter indent(2) %}{{ text }}{% endfilter %}{% raw %}{{ x }}{% endraw %}{{ -2 ** 2 // 3 }}
{% with a = [1, 2.5, none, true, {'k': (1,)}] %}{{ a|select('number')|sum }}{{ a[::-1] }}{% endwith %})";

TEST(HostileTemplates, SurvivesMutatedTemplates) {
  ASSERT_THAT(outcome(kSeed), HasSubstr("rendered ")) << "the seed itself works";
  const std::string seed = kSeed, bytes = "{}%#-+()[]|'\"~.,:=<>!*/\\ \n0x9aeinor_\xC3\xA9\xFF";
  TemplateLimits limits = small_limits();
  limits.steps = 20'000;
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string source = seed;
    for (unsigned change = 0; change <= random() % 4; ++change) {
      const size_t at = random() % source.size(), length = random() % 12;
      switch (random() % 4) {
        case 0:
          source.erase(at, length + 1);
          break;
        case 1:
          source.insert(at, 1, bytes[random() % bytes.size()]);
          break;
        case 2:
          source[at] = bytes[random() % bytes.size()];
          break;
        default:
          source.insert(at, seed.substr(random() % seed.size(), length));
          break;
      }
      if (source.empty()) source = "{";
    }
    try {
      outcome(source, limits);
    } catch (const Error& error) {
      ASSERT_THAT(error.what(), HasSubstr("must be UTF-8")) << source;
    }
  }
}

}  // namespace
}  // namespace colossal::text::hostile_templates_test
