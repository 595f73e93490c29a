"""Chat templates of the families there are, small and written for the tests."""

from __future__ import annotations

# A default system turn, and nothing but role and content: what it does not know it leaves out.
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou answer.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Tools, tool calls and results; the reasoning of the reply after the last question only, also where it is empty.
THINKING = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
{% if loop.index0 > last.user %}<think>
{{ (m.reasoning_content or '').strip('\n') }}
</think>

{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
# Trims, knows one tool call a turn, shows no content beside it, and ends without a line break.
HEADERS = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>ipython\n\n{{ m.content | tojson }}<|im_end|>"
    "{% elif m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one tool call at a time') }}{% endif %}"
    '<|im_start|>assistant\n\n{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|im_end|>'
    "{% else %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
# Users and the assistant in turn, and nobody else.
STRICT = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# No line break before a reply, so that the prompt's last token may merge with the reply's first.
TIGHT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
