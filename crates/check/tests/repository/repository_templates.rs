//! Chat templates: what reaches out of them is found however it is written, and templates as those of well-known models are not suspected.

use crate::repository_support::{folder, found, gguf, look, only, rules, safetensors};
use max_weights::rules::{Severity, Verdict};

/// The rules that a template breaks.
fn of(template: &str) -> Vec<&'static str> {
    rules(&[("chat_template.jinja", template)])
}

#[test]
fn an_attribute_of_pythons_insides_is_malicious_however_it_is_named() {
    for template in [
        "{{ x.__class__ }}",
        "{{ x['__class__'] }}",
        "{{ x[\"__cla\" \"ss__\"] }}",
        "{{ x['__cla' ~ 'ss__'] }}",
        "{{ x['__cla' + 'ss__'] }}",
        r"{{ x['\x5f\x5fclass\x5f\x5f'] }}",
        r"{{ x['\137\137class\137\137'] }}",
        r"{{ x['\N{LOW LINE}\N{LOW LINE}class\N{LOW LINE}\N{LOW LINE}'] }}",
        r"{{ x['\N{FULLWIDTH LOW LINE}_class__'] }}",
        "{{ x['__cla\\\nss__'] }}",
        "{{ x|attr('__class__') }}",
        "{{ x|attr('__cla' ~ 'ss__') }}",
        "{{ x|attr('%c%cclass%c%c' % (95, 95, 95, 95)) }}",
        "{{ x|attr('%s%s'|format('__', 'class__')) }}",
        "{{ x|attr(['__', 'class', '__']|join) }}",
        "{{ x|attr('__ssalc__'[::-1]) }}",
        "{{ x|attr('__ssalc__'|reverse) }}",
        "{{ x|attr('__CLASS__'|lower) }}",
        "{{ x|attr('__clxss__'|replace('x', 'a')) }}",
        "{{ x|attr(request.args.name) }}",
        "{{ x|attr(dict(__cla=1, ss__=2)|join) }}",
        "{% set a = '__cla' %}{% set b = 'ss__' %}{{ x[a ~ b] }}",
        "{% set a %}__class__{% endset %}{{ x|attr(a) }}",
        "{% for m in messages if m.__init__ %}{% endfor %}",
        "{% if x.y.__globals__ is defined %}a{% endif %}",
        "{% macro m(a=x.__class__) %}{% endmacro %}",
        "{{ messages|map(attribute='__class__')|list }}",
        "{{ messages|map('attr', '__class__')|list }}",
        "{{ messages|selectattr('__class__')|list }}",
        "{{ messages|sort(attribute='role.__class__') }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ x.mro() }}",
        "{{ x.gi_frame.f_globals }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ joiner['x'] }}",
        "{{ namespace.__init__ }}",
        "{{ self._TemplateReference__context }}",
        "{%- set ns = namespace(x=().__class__) -%}",
        "{# {{ #}{{ x.__class__ }}{# }} #}",
        "{% call m(x.__class__) %}{% endcall %}",
        "{% filter upper %}{{ x.__class__ }}{% endfilter %}",
        "{% raw %}{{ y.z }}{% endraw %}{{ x.__class__ }}",
    ] {
        assert!(of(template).contains(&"repository.template-escape"), "{template}: {:?}", of(template));
    }
}

#[test]
fn a_name_that_is_put_together_of_known_texts_is_never_passed_over() {
    for template in [
        "{{ x['__xclass__'[:2] ~ '__xclass__'[3:]] }}",
        "{{ x['ab__class__cd'[2:-2]] }}",
        "{{ x['_a_a_a_a'[::2][:2] ~ 'class' ~ '_' * 2] }}",
        "{{ x['_' * 2 ~ 'class' ~ 2 * '_'] }}",
        "{{ x['__cla ss__'.split()|join] }}",
        "{{ x[''.join('__cla-ss__'.split('-'))] }}",
        "{{ x['a,__class__,b'.split(',')[1]] }}",
        "{{ x['a,__class__'.rsplit(',')[-1]] }}",
        "{{ x['a,__class__'.split(',')|last] }}",
        "{{ x[['__class' ~ '__', 'b'][0]] }}",
        "{{ x['b__class__b'.strip('b')] }}",
        "{{ x['b__class__'.removeprefix('b')] }}",
        "{{ x['__ssalc__'|list|reverse|join] }}",
        "{{ x[{'a': '__cla' ~ 'ss__'}['a']] }}",
        "{% set ns = namespace(a='__cla') %}{% set ns.b = 'ss__' %}{{ x[ns.a ~ ns.b] }}",
        "{% set (a, b) = ('__cla', 'ss__') %}{{ x[a ~ b] }}",
        "{{ ('{0.__cl' ~ 'ass__}').format(x) }}",
    ] {
        let of = of(template);
        let found = ["repository.template-computed", "repository.template-escape"];
        assert!(of.iter().any(|rule| found.contains(rule)), "{template}: {of:?}");
    }
}

#[test]
fn a_name_that_is_computed_in_a_way_that_is_not_followed_needs_trust() {
    for template in [
        "{{ x['__clXss__'.translate({88: 97})] }}",
        "{{ x['5f5f636c617373'|unhex] }}",
        "{{ x['__cla' ~ nothing ~ 'ss__'] }}",
        "{{ x['__cla' ~ (nothing|default('')) ~ 'ss__'] }}",
        "{{ x['%(a)s' % {'a': '__cla'}] }}",
        "{{ x['A_B'|lower|replace('_', '__', 1)] }}",
        "{% set a = '__cla' %}{% set a = '' %}{{ x[a ~ 'ss__'] }}",
        "{% for a in ['__cla'] %}{% for b in ['ss__'] %}{{ x[a ~ b] }}{% endfor %}{% endfor %}",
        "{% macro m(a, b) %}{{ x[a ~ b] }}{% endmacro %}{{ m('__cla', 'ss__') }}",
        "{% macro m() %}__cla{% if true %}ss__{% endif %}{% endmacro %}{{ x[m()] }}",
        "{% set a %}__cla{% if true %}ss__{% endif %}{% endset %}{{ x[a] }}",
        "{% set ns = namespace(a='') %}{% for i in range(3) %}{% set ns.a = ns.a ~ 'x' %}{% endfor %}{{ x[ns.a] }}",
        "{{ x[dict(__cla=1, ss__=2)|join] }}",
        "{{ x[('__cla' ~ y) if y else 'role'] }}",
        "{{ x[bos_token] }}",
        "{{ (a ~ '{0.__class__}').format(x) }}",
    ] {
        let of = of(template);
        let found = ["repository.template-computed", "repository.template-escape"];
        assert!(of.iter().any(|rule| found.contains(rule)), "{template}: {of:?}");
    }
}

#[test]
fn items_by_names_of_the_conversation_are_ordinary() {
    for template in [
        "{% for m in messages %}{{ names[m.role] }}{{ names[m['role']] }}{{ names[loop.index0 - 1] }}{% endfor %}",
        "{% for key in ['name', 'description'] %}{{ tool[key] }}{% endfor %}",
        "{% for key, value in tool.items() %}{{ tool[key] }}{{ other[key|lower] }}{% endfor %}",
        "{% set role = 'model' if m.role == 'assistant' else m.role %}{{ names[role] }}",
        "{% macro show(tool, key) %}{{ tool[key] }}{% endmacro %}{{ show(tools[0], 'name') }}",
        "{% set i = messages|length - 1 %}{{ messages[i] }}{{ messages[:i][-1] }}{{ 'abc'[i] }}",
        "{{ x['ro' ~ 'le'] }}{{ x['user' if loop.index0 % 2 == 0 else 'assistant'] }}",
        "{% set parts = m.content.split('</think>') %}{{ parts[0] }}{{ parts[-1].strip('\\n') }}",
    ] {
        assert_eq!(of(template), [""; 0], "{template}");
    }
}

#[test]
fn templates_in_yaml_and_in_files_of_that_name_are_looked_at() {
    let evil = "{{ x.__class__ }}";
    for (name, text) in [
        ("tokenizer.yaml", format!("chat_template: \"{evil}\"\n")),
        ("tokenizer.yml", format!("a:\n  chat_template: |-\n    hello\n    {evil}\n")),
        ("tokenizer.yaml", format!("chat_template:\n  - name: tool\n    template: '{evil}'\n")),
        ("tokenizer.yaml", format!("chat_template: [ 'a', '{evil}' ]\n")),
        ("chatml.yaml", format!("instruction_template: >-\n  {evil}\n")),
        ("anchor.yaml", format!("x: &a \"{}{evil}\"\nchat_template: *a\n", "a".repeat(2000))),
        ("chatml.template", evil.to_owned()),
        ("chat_template.txt", evil.to_owned()),
    ] {
        let found = found(&[(name, &text)]);
        assert_eq!(only("repository.template-escape", &found).answer, Verdict::Malicious, "{name}: {text}");
    }
    let broken = rules(&[("tokenizer.yaml", "a: [\nchat_template: \"{{ x.__class__ }}\"\n  b: }\n")]);
    assert_eq!(broken, ["repository.template-escape", "repository.yaml-unreadable"]);
    assert_eq!(rules(&[("a.yaml", "template: '{{ name }}'\nrun: ${{ github.ref }}\n")]), [""; 0]);
}

#[test]
fn a_template_in_an_array_of_gguf_is_looked_at_as_transformers_takes_it() {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    for (texts, evil) in
        [(vec!["{{ x.__class__ }}"], true), (vec!["hello", "{{ x.__class__ }}"], true), (vec!["{{ a }}"], false)]
    {
        let mut bytes = [&b"GGUF\x03\0\0\0"[..], &[0; 8], &2u64.to_le_bytes()].concat();
        bytes.extend([string("general.architecture"), 8u32.to_le_bytes().to_vec(), string("llama")].concat());
        bytes.extend(
            [string("tokenizer.chat_template"), 9u32.to_le_bytes().to_vec(), 8u32.to_le_bytes().to_vec()].concat(),
        );
        bytes.extend((texts.len() as u64).to_le_bytes());
        bytes.extend(texts.iter().flat_map(|text| string(text)));
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        let found = look(folder(&[("model.gguf", &bytes)]).path());
        assert_eq!(found.iter().any(|found| found.rule == "repository.template-escape"), evil, "{texts:?}: {found:?}");
    }
}

#[test]
fn a_template_that_cannot_be_parsed_hides_nothing() {
    for template in [
        "{% unknown %}{{ x.__class__ }}",
        "{{ x.__class__ ",
        "{{ x[ '__cla'   ~\n'ss__' ] }}{% if %}",
        r"{% if %}{{ x['\x5f\x5fclass__'] }}",
        "{% if %}{{ x|attr(y) }}",
        "{% if %}{{ x.gi_frame }}",
    ] {
        let rules = of(template);
        assert!(rules.contains(&"repository.template-escape"), "{template}: {rules:?}");
        assert!(rules.contains(&"repository.template-unreadable"), "{template}: {rules:?}");
    }
    let chain = format!("{{{{ x{} }}}}", ".y".repeat(100_000));
    assert_eq!(of(&chain), ["repository.template-unreadable"], "a chain of attributes without end");
    let nested = format!("{{{{ {}x{} }}}}", "(".repeat(50_000), ")".repeat(50_000));
    assert_eq!(of(&nested), ["repository.template-unreadable"], "parentheses without end");
    let long = format!("{}{{{{ x['__cla' ~\n 'ss\\x5f_'] }}}}", "a".repeat(1 << 20));
    assert_eq!(of(&long), ["repository.template-escape", "repository.template-unreadable"], "a template without end");
    let blocks = "{% if x %}".repeat(20_000);
    assert_eq!(of(&blocks), ["repository.template-unreadable"], "blocks without end");
}

#[test]
fn other_templates_and_objects_of_servers_need_trust() {
    for template in ["{% include 'a' %}", "{% import 'a' as b %}", "{% from 'a' import b %}", "{% extends 'a' %}"] {
        assert_eq!(of(template), ["repository.template-include"], "{template}");
    }
    for template in ["{{ config.SECRET_KEY }}", "{{ request.args }}", "{{ session['user'] }}"] {
        assert_eq!(of(template), ["repository.template-global"], "{template}");
    }
    assert!(of("{% set config = messages[0] %}{{ config.role }}").is_empty(), "a name of the template's own");
}

#[test]
fn ranges_and_texts_without_end_are_malicious() {
    for template in
        ["{% for i in range(999999999) %}a{% endfor %}", "{{ 'a' * 10 ** 10 }}", "{% set n = 10000000 %}{{ range(n) }}"]
    {
        assert_eq!(of(template), ["repository.template-exhausts"], "{template}");
    }
    assert!(of("{% for i in range(0, 100) %}{{ '=' * 80 }}{% endfor %}").is_empty());
}

/// What templates of well-known models are written with, put together anew: none of it may be suspected, and all of it has to be parsed.
const ORDINARY: [&str; 9] = [
    // ChatML: a list, loop.first, concatenation
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    // Llama 2 and Mistral: exceptions, conditions on remainders, slices
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% endfor %}",
    // Llama 3: dates, namespaces, tojson with arguments, mapping tests, nested definitions
    "{{- bos_token }}\n{%- if custom_tools is defined %}\n    {%- set tools = custom_tools %}\n{%- endif %}\n{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n        {%- set date_string = strftime_now(\"%d %b %Y\") %}\n    {%- else %}\n        {%- set date_string = \"26 Jul 2024\" %}\n    {%- endif %}\n{%- endif %}\n{%- for t in tools or [] %}\n    {{- t | tojson(indent=4, ensure_ascii=False) }}\n    {{- \"\\n\\n\" }}\n{%- endfor %}\n{%- for message in messages %}\n    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}\n        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}\n    {%- elif 'tool_calls' in message %}\n        {%- if not message.tool_calls|length == 1 %}\n            {{- raise_exception(\"one at a time\") }}\n        {%- endif %}\n        {%- set tool_call = message.tool_calls[0].function %}\n        {%- for arg_name, arg_val in tool_call.arguments | items %}\n            {{- arg_name + '=\"' ~ arg_val ~ '\"' }}{%- if not loop.last %}{{- \", \" }}{%- endif %}\n        {%- endfor %}\n    {%- endif %}\n{%- endfor %}\n",
    // Qwen 3: reversed messages, methods of texts, attributes of a namespace
    "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n    {%- if ns.multi_step_tool and message.role == \"user\" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}\n        {%- set ns.multi_step_tool = false %}\n        {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}\n{%- for message in messages %}\n    {%- if message.content is not none and '</think>' in message.content %}\n        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}\n        {%- set reasoning = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n        {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}\n    {%- endif %}\n    {%- if (loop.first) or (messages[loop.index0 - 1].role != 'tool') %}{{- '<|im_start|>user' }}{%- endif %}\n    {%- if loop.last or (messages[loop.index0 + 1].role != \"tool\") %}{{- '<|im_end|>\\n' }}{%- endif %}\n{%- endfor %}\n{%- if enable_thinking is defined and enable_thinking is false %}\n    {{- '<think>\\n\\n</think>\\n\\n' }}\n{%- endif %}",
    // DeepSeek: several values in one namespace, non-ASCII tokens, `{%- set`, `is none`
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'assistant' and message['content'] is none %}{%- for tool in message['tool_calls']%}{{'<｜tool▁calls▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- endfor %}{%- endif %}{%- endfor -%}",
    // Gemma: macros that call themselves, filters with names, a condition without else
    "{%- macro format_argument(argument, escape_keys=True) -%}\n{%- if argument is string -%}{{- '<escape>' + argument + '<escape>' -}}\n{%- elif argument is boolean -%}{{- 'true' if argument else 'false' -}}\n{%- elif argument is mapping -%}{{- '{' -}}{%- set ns = namespace(found_first=false) -%}{%- for key, value in argument | dictsort -%}{%- if ns.found_first %},{% endif -%}{%- set ns.found_first = true -%}{{- key -}}:{{- format_argument(value, escape_keys=escape_keys) -}}{%- endfor -%}{{- '}' -}}\n{%- elif argument is sequence -%}{%- for item in argument -%}{{- format_argument(item) -}}{{- ',' if not loop.last -}}{%- endfor -%}{%- endif -%}\n{%- endmacro -%}\n{{ bos_token }}{%- for message in messages -%}{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}{{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else '') }}{{ message['content'] | map('upper') | list }}{%- for item in message['content'] | selectattr('type', 'equalto', 'text') -%}{{ item['text'] | trim }}{%- endfor -%}{%- endfor -%}",
    // gpt-oss: macros with defaults, tests of several kinds, tuples, breaks, comments
    "{#-\n  Macros for the types of TypeScript\n#}\n{%- macro render_typescript_type(param_spec, required_params, is_nullable=false) -%}\n    {%- if param_spec.type == \"array\" -%}\n        {%- if param_spec['items'] -%}{%- if param_spec['items']['type'] in [\"string\", \"number\", \"integer\"] -%}{{- param_spec['items']['type'] + \"[]\" }}{%- else -%}{{- render_typescript_type(param_spec['items'], required_params) + \"[]\" }}{%- endif -%}{%- endif -%}\n    {%- elif param_spec.type is defined and param_spec.type is iterable and param_spec.type is not string and param_spec.type is not mapping and param_spec.type[0] is defined -%}\n        {{- param_spec.type | join(\" | \") }}\n    {%- elif param_spec.oneOf -%}{%- for variant in param_spec.oneOf -%}{{- variant.type -}}{%- if loop.last -%}{%- break -%}{%- endif -%}{%- endfor -%}\n    {%- endif -%}\n{%- endmacro -%}\n{%- set attrs = [('role', 'user')] -%}{%- set attrs = attrs + [('name', messages[0].get('name', ''))] -%}\n{%- for message in messages -%}{%- if message.role == 'tool' -%}{%- continue -%}{%- endif -%}\n{{- message.get('_private') }}{{- \"namespace functions {\\n\\n\" -}}{%- endfor -%}",
    // SmolLM and Transformers' own: generation, filters in loops, escapes
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{%- else -%}{%- generation -%}{{ message['content'] }}{%- endgeneration -%}{% endif %}{% endfor %}{{ 'generation' }}",
    // tokens with underscores, which are no attributes
    "{{ '__start__' + messages[0]['content'] + '__end__' }}{% for m in messages if m['role'] not in ['system', 'tool'] %}{{ m.content | replace('__unk__', '') | default('', true) }}{% endfor %}{{ (x | int) ** 2 // 3 % 5 }}{{ [1, 2,][0] }}{{ {'a': 1, 'b': [true, none]}['a'] }}{{ 1.5e3 is number and not false }}",
];

#[test]
fn templates_as_those_of_well_known_models_are_parsed_and_not_suspected() {
    for template in ORDINARY {
        assert!(of(template).is_empty(), "{template}: {:#?}", found(&[("chat_template.jinja", template)]));
    }
}

#[test]
fn templates_are_found_wherever_they_stand() {
    let evil = "a\n{{ x.__class__ }}";
    let text = serde_json::to_string(evil).expect("JSON");
    for (name, config) in [
        ("tokenizer_config.json", format!(r#"{{"chat_template": {text}}}"#)),
        ("tokenizer_config.json", format!(r#"{{"chat_template": [{{"name": "tool_use", "template": {text}}}]}}"#)),
        ("chat_template.json", format!(r#"{{"chat_template": {text}}}"#)),
        ("processor_config.json", format!(r#"{{"chat_template": {{"default": {text}}}}}"#)),
        ("preprocessor_config.json", format!(r#"{{"a": NaN, "b": {{"chat_template": {text}}}}}"#)),
        ("additional_chat_templates/tool_use.jinja", evil.to_owned()),
        ("chat_template.jinja", evil.to_owned()),
        ("chat_template", evil.to_owned()),
    ] {
        let finding = only("repository.template-escape", &found(&[(name, &config)]));
        assert_eq!((finding.file.as_str(), finding.answer), (name, Verdict::Malicious));
        assert!(finding.message.contains("line 2"), "{}", finding.message);
        assert!(finding.evidence.contains("__class__"), "{}", finding.evidence);
    }
    for key in ["tokenizer.chat_template", "tokenizer.chat_template.tool_use"] {
        let folder = folder(&[("model.gguf", &gguf(&[(key, evil)]))]);
        assert!(only("repository.template-escape", &look(folder.path())).message.contains(key));
    }
    for metadata in [format!(r#"{{"chat_template": {text}}}"#), {
        let config = serde_json::to_string(&format!(r#"{{"chat_template": {text}}}"#)).expect("JSON");
        format!(r#"{{"config": {config}}}"#)
    }] {
        let folder = folder(&[("model.safetensors", &safetensors(&metadata))]);
        only("repository.template-escape", &look(folder.path()));
    }
}

#[test]
fn the_templates_of_good_weights_are_no_finding() {
    let folder = folder(&[
        ("a.gguf", &gguf(&[("tokenizer.chat_template", ORDINARY[3])])),
        ("b.safetensors", &safetensors(r#"{"format": "pt"}"#)),
    ]);
    assert!(look(folder.path()).iter().all(|found| found.severity < Severity::Warning));
}
