// The chat page: it names no other host, shows answers as text, and its policy allows its own script and style only.
#include "colossal/serve/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "colossal/base/file.h"
#include "support/paths.h"

namespace colossal::serve::page_test {
namespace {

using ::testing::ContainerEq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string page() { return std::string(page_html()); }

/// Returns the text between <name> and </name>.
std::string element(const std::string& name) {
  const std::string html = page(), open = "<" + name + ">";
  const size_t begin = html.find(open) + open.size();
  return html.substr(begin, html.find("</" + name + ">") - begin);
}

/// Returns what the first group of a pattern matches in the page.
std::set<std::string> all_matches(const char* pattern) {
  const std::regex compiled(pattern);
  const std::string html = page();
  std::set<std::string> found;
  for (std::sregex_iterator match(html.begin(), html.end(), compiled), end; match != end; ++match)
    found.insert((*match)[1]);
  return found;
}

/// The constants of SHA-256: the first 32 bits of the fractions of roots of the first primes.
struct Sha256Constants {
  std::array<uint32_t, 64> rounds{};  // fractions of the cube roots of primes
  std::array<uint32_t, 8> start{};    // fractions of the square roots of primes
};

/// Returns the largest number whose power is at most `limit`.
uint64_t integer_root(unsigned __int128 limit, int power) {
  uint64_t root = 0;
  for (int bit = 40; bit >= 0; --bit) {
    const uint64_t next = root | uint64_t{1} << bit;
    unsigned __int128 product = 1;
    for (int i = 0; i < power; ++i) product *= next;
    if (product <= limit) root = next;
  }
  return root;
}

Sha256Constants sha256_constants() {
  Sha256Constants constants;
  size_t count = 0;
  for (uint32_t number = 2; count < 64; ++number) {
    bool is_prime = true;
    for (uint32_t divisor = 2; divisor * divisor <= number; ++divisor) is_prime &= number % divisor != 0;
    if (!is_prime) continue;
    constants.rounds[count] = static_cast<uint32_t>(integer_root(static_cast<unsigned __int128>(number) << 96, 3));
    if (count < 8)
      constants.start[count] = static_cast<uint32_t>(integer_root(static_cast<unsigned __int128>(number) << 64, 2));
    ++count;
  }
  return constants;
}

void add_block(std::array<uint32_t, 8>& state, const std::string& block, const Sha256Constants& constants) {
  std::array<uint32_t, 64> words{};
  for (size_t i = 0; i < 64; ++i) words[i / 4] = words[i / 4] << 8 | static_cast<unsigned char>(block[i]);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  std::array<uint32_t, 8> s = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t first = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                           ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants.rounds[i] + words[i];
    const uint32_t second = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                            ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
  }
  for (size_t i = 0; i < 8; ++i) state[i] += s[i];
}

/// Returns the SHA-256 of a text in base64.
std::string sha256(std::string text) {
  const Sha256Constants constants = sha256_constants();
  const uint64_t bits = text.size() * 8;
  text += '\x80';
  while (text.size() % 64 != 56) text += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift);
  std::array<uint32_t, 8> state = constants.start;
  for (size_t i = 0; i < text.size(); i += 64) add_block(state, text.substr(i, 64), constants);

  const char* const characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string base64;
  for (size_t bit = 0; bit < 256; bit += 6) {
    uint32_t value = 0;
    for (size_t i = bit; i < bit + 6; ++i) value = value << 1 | (i < 256 ? state[i / 32] >> (31 - i % 32) & 1 : 0);
    base64 += characters[value];
  }
  return base64 + "=";
}

/// Returns the directives of a policy with their values.
std::map<std::string, std::string> directives(const std::string& policy) {
  std::map<std::string, std::string> found;
  std::istringstream parts(policy);
  for (std::string part; std::getline(parts, part, ';');) {
    const size_t name = part.find_first_not_of(' '), value = part.find(' ', name);
    found[part.substr(name, value - name)] = part.substr(value + 1);
  }
  return found;
}

TEST(ChatPage, EmbedsItsSource) {
  EXPECT_EQ(page(), read_file(test::source_dir() + "/src/colossal/serve/page.html", 1 << 20));
}

TEST(ChatPage, NamesNoOtherHost) {
  // Without two slashes in a row no attribute, import, url() or fetch() can name a host.
  EXPECT_THAT(page(), Not(HasSubstr("//")));
  for (const char* loader : {"src=", "href", "import", "url(", "@font-face", "XMLHttpRequest", "WebSocket",
                             "EventSource", "sendBeacon", "location"})
    EXPECT_THAT(page(), Not(HasSubstr(loader)));
  EXPECT_EQ(all_matches(R"(\bfetch\(([^,)]*))"), std::set<std::string>{"path"});
  EXPECT_EQ(all_matches(R"('(v1/[^']*)')"),
            (std::set<std::string>{"v1/models", "v1/chat/completions", "v1/completions"}));
}

TEST(ChatPage, ShowsAnswersAsText) {
  for (const char* writer : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "setHTML", "srcdoc",
                             "createContextualFragment", "DOMParser", "eval", "Function(", "javascript:"})
    EXPECT_THAT(page(), Not(HasSubstr(writer)));
  // The policy blocks handlers and styles in attributes, so the page must not depend on any.
  EXPECT_THAT(all_matches(R"(<[a-z][^>]*\s(on[a-z]+|style)\s*=)"), IsEmpty());
}

TEST(ChatPage, AllowsOnlyItself) {
  EXPECT_EQ(sha256("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");  // the example of the standard
  const std::map<std::string, std::string> expected{{"default-src", "'none'"},
                                                    {"script-src", "'sha256-" + sha256(element("script")) + "'"},
                                                    {"style-src", "'sha256-" + sha256(element("style")) + "'"},
                                                    {"connect-src", "'self'"},
                                                    {"base-uri", "'none'"},
                                                    {"form-action", "'none'"},
                                                    {"frame-ancestors", "'none'"},
                                                    {"require-trusted-types-for", "'script'"},
                                                    {"trusted-types", "'none'"}};
  EXPECT_THAT(directives(page_policy()), ContainerEq(expected));
}

TEST(ChatPage, HasTheElementsThatItsScriptUses) {
  const std::set<std::string> ids = all_matches(R"(\sid="([^"]+)\")");
  for (const std::string& used : all_matches(R"(byId\('([^']+)'\))"))
    EXPECT_TRUE(ids.contains(used)) << used << " is no id of the page";
  EXPECT_TRUE(ids.contains("input") && ids.contains("send") && ids.contains("stop"));
}

TEST(ChatPage, LabelsEveryField) {
  const std::set<std::string> labelled = all_matches(R"(<label for="([^"]+)\")");
  EXPECT_EQ(all_matches(R"(<(?:input|textarea) id="([^"]+)\")"), labelled);
}

TEST(ChatPage, HoldsLessThan25KilobytesOfAscii) {
  EXPECT_LT(page().size(), 25000U);
  for (const char c : page()) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << "character " << int{c};
}

}  // namespace
}  // namespace colossal::serve::page_test
